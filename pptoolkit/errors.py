"""Every error of the toolkit, in one tree.

Each message names the value, the place and the remedy. The tree follows who has to act:

    PPToolkitError
    |- InputError            what the user handed over is wrong: found before training starts (exit code 2)
    |  |- ConfigError        a config file or option
    |  |- PlanError          cuts, schedule or micro-batches that do not fit the model
    |  |- ScheduleError      an order of actions that cannot run
    |  |- DataError          the corpus or data set
    |  `- RunError           a run directory that cannot be read or written
    |- MonitoringError       a service around the runs refused or did not answer (exit code 1)
    `- TrainingError         the run itself failed (exit code 1)
       |- StageError         an exception inside a layer, with rank, stage and micro-batch
       `- PeerLostError      another rank is gone, so this one cannot go on
"""


class PPToolkitError(Exception):
    """Base of every error that this package raises on purpose."""

    exit_code = 1


class InputError(PPToolkitError):
    """The input is wrong; nothing was started."""

    exit_code = 2


class ConfigError(InputError):
    """A config key or option that is unknown, missing or out of range."""


class PlanError(InputError):
    """A plan that does not fit the model, the schedule or the number of ranks."""


class ScheduleError(InputError):
    """An order of actions that is incomplete, out of order or would deadlock."""


class DataError(InputError):
    """A data set that is missing, empty or too small."""


class RunError(InputError):
    """A run directory that is missing, unreadable or not writable."""


class MonitoringError(PPToolkitError):
    """A service around the runs, such as Grafana, refused or did not answer. No run is affected."""


class TrainingError(PPToolkitError):
    """Training started and failed."""


class StageError(TrainingError):
    """An exception inside the layers of one stage.

    Args:
        rank: Global rank that raised.
        stage: Stage whose layers ran.
        micro_batch: Micro-batch index within the step, or -1 outside the schedule.
        step: Step, counted from 0.
        doing: What the stage was doing, e.g. ``"forward"``.
        cause: The exception itself, shown at the end of the message.
    """

    def __init__(self, *, rank: int, stage: int, micro_batch: int, step: int, doing: str, cause: BaseException) -> None:
        self.rank, self.stage, self.micro_batch, self.step, self.doing = rank, stage, micro_batch, step, doing
        where = f"rank {rank}, stage {stage}, micro-batch {micro_batch}, step {step}"
        super().__init__(f"{doing} failed at {where}: {type(cause).__name__}: {cause}")


class PeerLostError(TrainingError):
    """Communication with another rank broke, so that rank is the one to look at first."""


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, for a message: ``1 stage``, ``2 stages``."""
    ending = "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{'' if number == 1 else ending}"
