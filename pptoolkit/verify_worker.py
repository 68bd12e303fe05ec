"""One rank of ``pptoolkit verify``: ``python -m pptoolkit.verify_worker FOLDER``, started by the launcher."""

import json
import os
import sys
from pathlib import Path

from pptoolkit.config import RunConfig
from pptoolkit.errors import PPToolkitError
from pptoolkit.failure import RankFailure, write_failure
from pptoolkit.plan import Plan


def main() -> None:
    """Verify the request in the folder; rank 0 leaves the answer there, a rank that fails leaves its failure."""
    folder = Path(sys.argv[1])
    rank = int(os.environ["RANK"])
    try:
        found = _verify(folder)
        if rank == 0:
            (folder / "answer.json").write_text(json.dumps(found))
    except BaseException as error:
        write_failure(folder / "failures", RankFailure.of(error, rank=rank))
        # Without the interpreter's exit handlers: they may wait for ranks that are gone.
        os._exit(error.exit_code if isinstance(error, PPToolkitError) else 1)


def _verify(folder: Path) -> dict[str, object]:
    from pptoolkit.job import make_job
    from pptoolkit.job_settings import make_optimisation
    from pptoolkit.verification import verify

    request = json.loads((folder / "request.json").read_text())
    config = RunConfig.from_dict(request["config"], where="the job file")
    job = make_job(config)
    found = verify(
        job.layers,
        job.dataset(),
        loss=job.loss,
        optimizer=job.make_optimizer(config),
        plan=Plan.from_dict(request["plan"]),
        batch_size=config.training.batch_size,
        steps=request["steps"],
        seed=config.training.seed,
        optimisation=make_optimisation(config),
        device=config.training.device,
    )
    return found.to_dict()


if __name__ == "__main__":
    main()
