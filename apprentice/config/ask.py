"""Configuration of Learning to Ask: the advisor, its prices and budgets, the three stages, the demo's parts.

Values of the paper are the defaults where it gives one (sections 5 and 6.1, appendix D).
Import-light: pydantic only. Part of :class:`apprentice.config.schema.Config` as ``ask``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from apprentice.config.base import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Probability,
    Strict,
)
from apprentice.config.parts import (
    OpenAIBackend,
    OptimizerConfig,
    ProblemSetConfig,
    SamplingConfig,
    VllmBackend,
)

__all__ = [
    "AdvisorConfig",
    "ArithmeticBackend",
    "AskConfig",
    "AskStageConfig",
    "AskWarmupConfig",
    "BudgetConfig",
    "JudgeConfig",
    "PricesConfig",
    "QmakerConfig",
    "RecordedBackend",
    "SecretsConfig",
    "SoloConfig",
]


class ArithmeticBackend(Strict):
    """Answers whatever arithmetic a query states, and nothing else; needs no model. For CPU runs and tests.

    It sees only the query, like any advisor: a query that states no expression gets no answer.
    """

    kind: Literal["arithmetic"] = "arithmetic"
    error_rate: Probability = Field(
        0.0, description="Share of expressions answered wrongly (fixed per text)."
    )
    latency_s: NonNegativeFloat = 0.0
    failure_rate: Probability = Field(
        0.0, description="Share of attempts that fail as infrastructure (tests)."
    )


class RecordedBackend(Strict):
    """Answers from a JSON-lines file of ``query``, ``text`` and usage, by exact query."""

    kind: Literal["recorded"] = "recorded"
    path: str


class AdvisorConfig(Strict):
    """The black-box advisor: it sees the query and nothing else."""

    name: str = "advisor"
    backend: Annotated[
        ArithmeticBackend | RecordedBackend | OpenAIBackend | VllmBackend, Field(discriminator="kind")
    ]
    thinking: Literal["off", "withheld", "passed_on"] = Field(
        "off",
        description="A thinking advisor whose reasoning did not end within the cap: withheld gives the "
        "reasoner nothing of it, passed_on what there is (section 7.3). off: a non-thinking advisor.",
    )
    temperature: NonNegativeFloat = Field(0.0, description="Greedy: appendix D.2.")
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_tokens: PositiveInt = Field(2048, description="Response cap: output tokens of one answer.")
    replicas: PositiveInt = Field(
        1, description="Processes that answer; one without an engine answers where the ledger is kept."
    )
    num_gpus: NonNegativeFloat = 0.0
    num_cpus: NonNegativeFloat = 0.1
    max_ongoing_requests: PositiveInt = 64
    timeout_s: PositiveFloat = 120.0
    max_retries: NonNegativeInt = 3


class PricesConfig(Strict):
    """Unit prices of a token (Eq. 4). 1 and 6 are the paper's; real prices work as well."""

    input: NonNegativeFloat = 1.0
    output: NonNegativeFloat = 6.0
    cached_input: NonNegativeFloat | None = Field(
        None, description="Price of an input token that the provider had cached; as input when left out."
    )


class BudgetConfig(Strict):
    """Hard limits in units of the prices; None: no limit. A call whose worst case does not fit is refused."""

    per_trajectory: PositiveFloat | None = None
    per_run: PositiveFloat | None = None
    per_key: dict[str, PositiveFloat] = Field(default_factory=dict, description="Limit of each caller's key.")


class SoloConfig(Strict):
    """Standalone success p_SLM (Eq. 5) and the consultation target n(x) (Eq. 6)."""

    samples: PositiveInt = Field(16, description="k: rollouts a problem without the advisor.")
    gamma: NonNegativeInt = Field(12, description="Problems solved in at most gamma of k need the advisor.")
    sampling: SamplingConfig = SamplingConfig(temperature=0.7, top_p=0.95)
    max_problems: PositiveInt | None = Field(
        None, description="Training problems to estimate; all if left out."
    )


class JudgeConfig(Strict):
    """Who decides whether a query is answerable as it is (G of Eq. 9)."""

    kind: Literal["rule", "advisor", "openai"] = Field(
        "advisor",
        description="advisor: the advisor's own endpoint (appendix D.1); rule: no model, for CPU runs.",
    )
    endpoint: OpenAIBackend | None = Field(None, description="For openai.")
    prices: PricesConfig | None = Field(
        None, description="For openai; its calls are counted without a cost when left out."
    )
    max_tokens: PositiveInt = Field(16, description="Reply cap; a judge that thinks needs more.")


class QmakerConfig(Strict):
    """The query writer. It starts from ``model``, or from the controller's weights."""

    model: str | None = None
    budgets: tuple[PositiveInt, ...] = Field(
        (512, 1024, 2048, 4096, 8192, 16384), description="b: one Qmaker is trained for each."
    )
    max_query_tokens: PositiveInt = 512
    privacy: bool = Field(
        False, description="G_safe in the reward (Eq. 12) and the privacy rule in the prompt."
    )


class SecretsConfig(Strict):
    """Synthetic secrets planted into problems (appendix C.2)."""

    share: Probability = Field(0.0, description="Share of training problems that get one.")
    seed: int = 0


class AskStageConfig(Strict):
    """One of the three reinforcement-learning stages (D.1: 8 rollouts a prompt, 256 or 128 prompts)."""

    steps: NonNegativeInt = 100
    prompts_per_step: PositiveInt = 128
    rollouts_per_prompt: Annotated[int, Field(ge=2)] = 8
    sampling: SamplingConfig = SamplingConfig()
    epsilon_advantage: PositiveFloat = 1e-6
    clip_epsilon: PositiveFloat = 0.2
    dual_clip: Annotated[float, Field(gt=1)] = 3.0
    updates_per_step: PositiveInt = 1
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=1e-6)
    validate_every: NonNegativeInt = Field(
        10, description="Steps between validations; the best checkpoint is kept. 0: only the last one."
    )


class AskWarmupConfig(Strict):
    """SFT that teaches the ask format, and no selectivity: asking is independent of the problem."""

    examples: PositiveInt = 256
    problems: ProblemSetConfig | None = Field(
        None,
        description="Problems of the reasoner's demonstrations, other than those of the training set; the "
        "training set itself when left out.",
    )
    ask_share: Probability = Field(
        0.5, description="Share that asks, at random, of the reasoner's demonstrations with an advisor."
    )
    copies: NonNegativeInt = Field(
        0,
        description="Texts that are only repeated, before the demonstrations: a model from random weights "
        "cannot copy before, so it has no secret to give away.",
    )
    epochs: PositiveInt = 1
    batch_size: PositiveInt = 16
    optimizer: OptimizerConfig = OptimizerConfig(learning_rate=2e-4)


class AskConfig(Strict):
    """Learning to Ask."""

    advisor: AdvisorConfig
    prices: PricesConfig = PricesConfig()
    budget: BudgetConfig = BudgetConfig()
    llm_max_tokens: PositiveInt = Field(
        16384, description="Response cap of the baseline in which the advisor solves the problems alone."
    )
    key: str = Field("default", description="The key that this run's calls are charged to.")
    instructions: Literal["paper", "compact"] = "paper"
    max_asks: NonNegativeInt = Field(1, description="Calls to the advisor in one trajectory.")
    solo: SoloConfig = SoloConfig()
    judge: JudgeConfig = JudgeConfig()
    qmaker: QmakerConfig = QmakerConfig()
    secrets: SecretsConfig = SecretsConfig()
    lambda_task: Annotated[float, Field(gt=0, lt=1)] = Field(0.2, description="lambda of Eq. 10.")
    validation_share: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="Held-out split of the training set that selects checkpoints (appendix D.2)."
    )
    validation_samples: PositiveInt = Field(4, description="Rollouts of a held-out problem in a validation.")
    states_per_problem: PositiveInt = Field(
        2, description="Rollouts of a training problem from which stage 2's states are collected."
    )
    frozen_sampling: SamplingConfig = Field(
        SamplingConfig(temperature=0.7, top_p=0.95),
        description="Of the model that is not trained in a stage.",
    )
    frozen_engines: PositiveInt = Field(1, description="Rollout actors of a model that a stage only asks.")
    warmup: AskWarmupConfig = AskWarmupConfig()
    qmaker_warmup: AskWarmupConfig = AskWarmupConfig()
    stage1: AskStageConfig = AskStageConfig(prompts_per_step=256)
    stage2: AskStageConfig = AskStageConfig()
    stage3: AskStageConfig = AskStageConfig()

    @model_validator(mode="after")
    def _consistent(self) -> AskConfig:
        if self.solo.gamma >= self.solo.samples:
            raise ValueError(
                f"ask.solo.gamma: {self.solo.gamma} of {self.solo.samples} samples would send every problem "
                "to the advisor; it must be below ask.solo.samples"
            )
        if self.judge.kind == "openai" and self.judge.endpoint is None:
            raise ValueError("ask.judge.endpoint: the judge 'openai' needs one")
        if len(set(self.qmaker.budgets)) != len(self.qmaker.budgets) or not self.qmaker.budgets:
            raise ValueError("ask.qmaker.budgets: give at least one budget, each once")
        return self
