"""Base of every configuration model. Import-light: pydantic only."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

__all__ = ["NonNegativeFloat", "NonNegativeInt", "PositiveFloat", "PositiveInt", "Probability", "Strict"]

PositiveInt = Annotated[int, Field(ge=1)]
NonNegativeInt = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
NonNegativeFloat = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, le=1)]


class Strict(BaseModel):
    """Unknown keys are errors; a loaded configuration does not change."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
