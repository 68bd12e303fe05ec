"""Wrong input: found before a process starts, exit code 2, and a message with the value, the place and the remedy."""

from pathlib import Path

import pytest

from pptoolkit.cli import main
from pptoolkit.engine.device import Accelerators
from tests.support.jobs import write_job

GPT = """
[model]
width = 32
heads = 2
depth = 2
sequence = 16
[data]
path = "{path}"
vocabulary = 300
[training]
batch_size = {batch}
steps = 2
[plan]
micro_batches = 4
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def refuse(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Run a command that must be refused; return its message, with line breaks of the terminal removed."""
    assert main.run(arguments) == 2
    captured = capsys.readouterr()
    return " ".join(captured.err.split())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[training]\nbatch_siz = 8", "unknown key 'training.batch_siz'; did you mean 'batch_size'?"),
        ("[trainig]\nsteps = 8", "unknown key 'trainig'; did you mean 'training'?"),
        ("[training]\nsteps = 0", "training.steps = 0: input should be greater than or equal to 1"),
        ('[training]\nsteps = "many"', "training.steps = 'many': input should be a valid integer"),
        ("[model]\nwidth = 30\nheads = 4", "width=30 is no multiple of heads=4; choose heads that divide width"),
        ("[training]\nwarmup_steps = 4\nsteps = 2", "warmup_steps=4 do not fit steps=2; use fewer warmup_steps, or --steps 5 or more"),
        ("not toml", "must be a TOML file"),
    ],
)
def test_a_wrong_config_is_refused_by_key_and_value(here: Path, capsys: pytest.CaptureFixture[str], text: str, message: str) -> None:
    (here / "bad.toml").write_text(text)
    said = refuse(capsys, "train", "bad.toml")
    assert "bad.toml" in said
    assert message in said


@pytest.mark.parametrize(
    ("plan", "nproc", "message"),
    [
        ("cuts = [3, 2]", "3", "cut point 2 in cuts=[3, 2] does not come after 3"),
        ("cuts = [0]", "2", "cut point 0 in cuts=[0] is out of range; the model has 4 layers, so use 1 to 3"),
        ("cuts = [9]", "2", "job.toml: cut point 9 in cuts=[9] is out of range"),
        ("cuts = [1, 2, 3, 4]", "5", "cuts=[1, 2, 3, 4] make 5 stages, but the model has 4 layers; use at most 3 cut points"),
        ("cuts = [2]", "1", "cuts=[2] make 2 stages, but 1 rank was asked for"),
        ("cuts = [1, 2]", "2", "use --nproc 3, or 1 cut point"),
        ("cuts = [2]", "3", "cuts=[2] make 2 stages, but 3 ranks were asked for"),
        ("", "5", "--nproc 5 makes 5 stages, but the model has 4 layers; use --nproc 4, or fewer"),
        ("", "0", "--nproc 0 starts no process"),
        ("micro_batches = 5", "2", "training.batch_size=16 cannot be cut into 5 equal micro-batches; use batch_size=15"),
        ("micro_batches = 32", "2", "training.batch_size=16 cannot be cut into 32 equal micro-batches; use batch_size=32"),
        ('schedule = "1f1d"', "2", "did you mean '1f1b'"),
        ('schedule = "forward"', "2", "has no backward and trains nothing"),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(here: Path, capsys: pytest.CaptureFixture[str], plan: str, nproc: str, message: str) -> None:
    config = write_job(here, steps=2, port=19200)
    text = config.read_text().replace(
        "[plan]\nmicro_batches = 8", f"[plan]\n{plan}" if "micro" in plan else f"[plan]\nmicro_batches = 8\n{plan}"
    )
    config.write_text(text)
    assert message in refuse(capsys, "train", str(config), "--nproc", nproc)
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"[training]": "[training]\ncompile = true"}, "auto_rebalance cannot move compiled layers"),
        ({"[telemetry]": "[telemetry]\nenabled = false"}, "telemetry is off; switch it on, or train without it"),
        ({"[telemetry]": "[telemetry]\nsample_layers_every = 0"}, "sample_layers_every=0 times none"),
        (
            {"[training]": '[training]\nreplication = "fsdp"', "[plan]": "[plan]\nreplicas = 2", "micro_batches = 8": "micro_batches = 4"},
            "auto_rebalance cannot move layers whose parameters are sharded over the replicas",
        ),
    ],
)
def test_what_a_re_cut_cannot_move_is_refused_before_a_process_starts(
    here: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, str], message: str
) -> None:
    config = write_job(here, steps=2, port=19200)
    text = config.read_text()
    for old, new in changes.items():
        text = text.replace(old, new)
    config.write_text(text)
    assert message in refuse(capsys, "train", str(config), "--nproc", "2", "--auto-rebalance")
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("devices", "arguments", "message"),
    [
        (0, ("train", "--device", "cuda"), "device='cuda', but torch 9.9 sees no CUDA device"),
        (1, ("train", "--device", "cuda"), "device='cuda' with 2 ranks on this host, but torch sees 1 CUDA device"),
        (1, ("train", "--device", "gpu"), "--device: training.device = 'gpu': input should be 'cpu', 'cuda' or 'auto'"),
        (1, ("verify",), "device='cuda' with 2 ranks on this host, but torch sees 1 CUDA device"),
        (1, ("profile",), "training.device='cuda', but layers are profiled on the CPU"),
    ],
)
def test_a_device_that_the_ranks_cannot_have_is_refused_before_a_process_starts(
    here: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    devices: int,
    arguments: tuple[str, ...],
    message: str,
) -> None:
    there = Accelerators(devices=devices, built=True, nccl=True, version="9.9")
    monkeypatch.setattr(Accelerators, "visible", lambda: there)
    config = write_job(here, steps=2, port=19200)
    command, *options = arguments
    if not options:
        config.write_text(config.read_text().replace("[training]", '[training]\ndevice = "cuda"'))
    ranks = ("--nproc", "2") if command != "profile" else ()
    assert message in refuse(capsys, command, str(config), *ranks, *options)
    assert not (here / "runs").exists()


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ("dataset=lambda: ", "dataset=", "Job.dataset is a TensorDataset, not a function; it must be a function that returns the data set"),
        ("nn.functional.mse_loss", "nn.MSELoss", "Job.loss is the class MSELoss, not one of it; write a function of (output, target)"),
        ("nn.functional.mse_loss", "'mse'", "Job.loss is a str, not a function"),
        ("layers=layers", "layers=nn.Linear(8, 8)", "Linear is no list of layers; pass an nn.Sequential or a list of pptoolkit.Layer"),
        ("layers=layers", "layers=8", "int is no list of layers; pass an nn.Sequential or a list of pptoolkit.Layer"),
        (
            "layers=layers",
            "layers=layers, optimizer=torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)",
            "Job.optimizer is a SGD, not a function; write optimizer=lambda parameters:",
        ),
    ],
)
def test_a_part_of_a_custom_job_that_is_of_the_wrong_kind_is_named(
    here: Path, capsys: pytest.CaptureFixture[str], right: str, wrong: str, message: str
) -> None:
    config = write_job(here, steps=2, port=19200)
    model = here / "slow.py"
    assert right in model.read_text()
    model.write_text(model.read_text().replace(right, wrong))
    said = refuse(capsys, "train", str(config), "--nproc", "2")
    assert message in said
    assert "model.factory='slow.py:job'" in said
    assert not (here / "runs").exists()


def test_a_missing_corpus_and_an_empty_one_are_told_apart(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "gpt.toml").write_text(GPT.format(path="nowhere", batch=8))
    assert "data.path=nowhere does not exist" in refuse(capsys, "train", "gpt.toml", "--nproc", "2")
    (here / "empty").mkdir()
    (here / "gpt.toml").write_text(GPT.format(path="empty", batch=8))
    assert "empty" in refuse(capsys, "train", "gpt.toml", "--nproc", "2")


def test_a_batch_larger_than_the_corpus_names_both_sizes(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "texts").mkdir()
    (here / "texts" / "a.txt").write_text("a few words of text\n" * 40)
    (here / "gpt.toml").write_text(GPT.format(path="texts", batch=4000))
    said = refuse(capsys, "train", "gpt.toml", "--nproc", "2")
    assert "batch_size=4000 needs" in said
    assert "use a batch_size of at most" in said


def test_an_unwritable_run_directory_is_refused_before_training(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_job(here, steps=2, port=19200)
    (here / "runs").write_text("a file where the folder should be")
    said = refuse(capsys, "train", str(config), "--nproc", "2")
    assert "cannot write runs/job: Not a directory" in said
    assert "free space" not in said  # there is enough of it
    assert "choose a writable place with --run" in said


def test_a_plan_file_is_named_in_what_is_wrong_with_it(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_job(here, steps=2, port=19200)
    (here / "plan.toml").write_text("cuts = [9]\nmicro_batches = 8\n")
    for command in ("train", "verify"):
        assert "error: plan.toml: cut point 9" in refuse(capsys, command, str(config), "--plan", "plan.toml")


def test_a_token_file_that_is_not_there_is_no_pem_file(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = refuse(capsys, "collect", "http://127.0.0.1:9", "--token-file", "nosuch")
    assert "token_file='nosuch': there is no such file; name a file with the token" in said


def test_a_plan_of_another_model_is_refused(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write_job(here, steps=2, port=19200)
    (here / "plan.toml").write_text('version = 1\ncuts = [2]\nmicro_batches = 8\nfingerprint = "0123456789abcdef"\n')
    assert "the plan was made for another model" in refuse(capsys, "train", str(config), "--plan", "plan.toml")


def test_no_run_yet_says_how_to_get_one(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("report", "suggest", "apply"):
        assert "train one first: pptoolkit train" in refuse(capsys, command)
    assert "there is no run at nowhere" in refuse(capsys, "report", "nowhere")
