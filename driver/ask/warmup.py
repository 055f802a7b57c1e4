"""Warm-ups for models that know neither the form of a call nor that of a query (CPU runs, mostly).

They teach forms and no judgement: whether a demonstration asks, and what, is drawn without a look at the
problem. The paper's models know both and skip them.
"""

from __future__ import annotations

from apprentice.ask.copies import copy_examples
from apprentice.ask.qmaker_warmup import qmaker_examples
from apprentice.ask.warmup import reasoner_examples
from apprentice.config.ask import AskConfig
from apprentice.data.load import load_problems
from apprentice.data.problem import Problem
from apprentice.data.secrets import plant_secrets
from apprentice.data.text import question_key
from apprentice.learning.batch import SftExample
from driver.ask.session import AskSession
from driver.ask.states import read_states
from driver.ask.units import Unit
from driver.sft import train_sft

__all__ = ["run_warmup"]


def run_warmup(session: AskSession, unit: Unit) -> None:
    """Build the demonstrations and train on them; ends with the stage's checkpoint."""
    assert session.recipe.ask is not None
    if unit.name == "ask_warmup":
        config, examples = session.recipe.ask.warmup, _reasoner(session, session.recipe.ask)
    else:
        config, examples = session.recipe.ask.qmaker_warmup, _qmaker(session, session.recipe.ask)
    steps = train_sft(
        session.run,
        unit.name,
        examples,
        batch_size=config.batch_size,
        epochs=config.epochs,
        optimizer=config.optimizer,
        lambda_fmt=0.0,
        lead=copy_examples(config.copies, session.run.codec, session.recipe.seed),
    )
    session.select(unit.name, steps, serving=True)


def _reasoner(session: AskSession, config: AskConfig) -> list[SftExample]:
    return reasoner_examples(
        _problems(session, config),
        config.warmup.examples,
        codec=session.run.codec,
        config=session.recipe,
        advisor=session.advisor,
        on_wave=lambda: session.run.watchdog.beat("warm-up demonstrations"),
    )


def _problems(session: AskSession, config: AskConfig) -> list[Problem]:
    """Problems of the demonstrations; of a set of their own those that no stage and no test has."""
    if config.warmup.problems is None:
        return session.train
    known = {question_key(problem.question) for problem in session.everything}
    problems = load_problems(config.warmup.problems, known)
    return plant_secrets(problems, config.secrets.share, config.secrets.seed)


def _qmaker(session: AskSession, config: AskConfig) -> list[SftExample]:
    """As many demonstrations of each budget, since a budget stands in Qmaker's prompt."""
    train, _ = read_states(session)
    share = -(-config.qmaker_warmup.examples // len(config.qmaker.budgets))
    reasoner = session.codec("ask_stage1")
    examples = []
    for budget in config.qmaker.budgets:
        advisor = config.advisor.model_copy(update={"max_tokens": budget})
        examples += qmaker_examples(
            train,
            share,
            codec=session.run.codec,
            reasoner=reasoner,
            ask=config.model_copy(update={"advisor": advisor}),
            seed=session.recipe.seed,
        )
    return examples
