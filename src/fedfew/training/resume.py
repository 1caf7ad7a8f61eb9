"""A stopped run, continued from its folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from fedfew.config import TrainConfig
from fedfew.training import checkpoint, validation
from fedfew.training.checkpoint import State
from fedfew.util.spelling import counted


def state_in(folder: Path | None, resume: bool, identity: dict[str, Any]) -> tuple[State | None, list[str]]:
    """The state to resume from, None for a new run, and why newer checkpoints cannot be used.

    identity: the settings that the run in the folder must have been started with.
    """
    if folder is None:
        if resume:
            raise ValueError("resume needs folder: the folder of the run to resume")
        return None, []
    if not checkpoint.checkpoints(folder):
        return None, []
    if not resume:
        raise ValueError(f"{folder} already holds a run: resume it (resume=True), or choose another folder")
    try:
        return checkpoint.read_newest(folder, identity)
    except checkpoint.CheckpointError as error:
        if "belongs to another run" not in str(error):
            raise
        advice = f"With other settings, start a new run from its models (start=fedfew.load(…), --start {folder})"
        raise checkpoint.CheckpointError(f"{error}. {advice}") from None


def with_recorded(config: TrainConfig, state: State) -> TrainConfig:
    """The settings of a continued run: engine and chunk as recorded, unless given."""
    if state.round > config.rounds:
        raise ValueError(f"rounds is {config.rounds}, but the run has already done {state.round}")
    before = state.settings
    if config.rounds > before["rounds"] and (stopped := validation.reason_to_stop(state.history, config)) is not None:
        raise ValueError(
            f"rounds is {config.rounds}, but the run {stopped}, and no round would be trained: continue it with a larger "
            "early_stopping (start=fedfew.load(folder), --start FOLDER)"
        )
    return replace(
        config,
        engine=before["engine"] if config.engine == "auto" else config.engine,
        chunk=before["chunk"] if config.chunk is None else config.chunk,
    )


def schedule_notes(config: TrainConfig, state: State) -> list[str]:
    """A line for each schedule that was planned for another number of rounds."""
    planned, found = state.settings["rounds"], []
    if config.schedule != "constant" and planned != config.rounds:
        found.append(
            f"rounds was {planned} and is {config.rounds} now: the learning rate goes on by a {config.schedule} schedule over "
            f"{counted(config.rounds, 'round')}; that of the {counted(state.round, 'round')} done was by one over {planned}"
        )
    if config.smoothing_of(state.round) != replace(config, rounds=planned).smoothing_of(state.round):
        found.append(
            f"rounds was {planned} and is {config.rounds} now: smoothing_end applies to the last quarter of {config.rounds}; "
            f"in the {counted(state.round, 'round')} done it applied to the last quarter of {planned}"
        )
    return found
