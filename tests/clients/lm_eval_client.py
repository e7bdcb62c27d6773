"""lm-eval: log-likelihoods over text completions, and texts generated until a stop string."""

# Its package is not in the project's own environment.
# mypy: disable-error-code="import-not-found"

import json
import subprocess
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.instance import Instance
from lm_eval.models.openai_completions import LocalCompletionsAPI
from lm_eval.tasks import TaskManager

from tests.clients.scenario import Scenarios, Server

scenarios = Scenarios("lm_eval")

HERE = Path(__file__).parent / "lm_eval_task"
TOLERANCE = 1e-3


def connected(server: Server, **fields: Any) -> Any:
    return LocalCompletionsAPI(
        model=server.model,
        base_url=f"{server.v1}/completions",
        tokenizer=str(server.model_path),
        tokenizer_backend="huggingface",
        max_length=2048,
        **fields,
    )


def task_folder(server: Server) -> Path:
    """A folder with the task as lm-eval wants it: the path to its data is whole."""
    folder = server.directory / "tasks"
    folder.mkdir(exist_ok=True)
    files = json.dumps({"data_files": {"test": str(HERE / "capitals.jsonl")}})
    text = (HERE / "capitals.yaml").read_text(encoding="utf-8")
    (folder / "capitals.yaml").write_text(f"{text}dataset_kwargs: {files}\n", encoding="utf-8")
    return folder


def evaluated(server: Server, lm: Any) -> list[Any]:
    """The samples of the task, after its score was looked at."""
    found: Any = simple_evaluate(
        model=lm,
        tasks=["capitals"],
        task_manager=TaskManager(include_path=str(task_folder(server)), include_defaults=False),
        bootstrap_iters=0,
    )
    assert 0 <= found["results"]["capitals"]["acc,none"] <= 1
    samples: list[Any] = found["samples"]["capitals"]
    assert len(samples) == 6
    return samples


def own_forward(server: Server, pairs: list[Any]) -> list[Any]:
    asked = json.dumps({"model": str(server.model_path), "pairs": pairs})
    done = subprocess.run(
        [server.python, "-m", "tests.clients.own_forward"],
        input=asked,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-500:]
    answer: list[Any] = json.loads(done.stdout)
    return answer


def compare(server: Server, lm: Any) -> None:
    told, pairs = [], []
    for sample in evaluated(server, lm):
        for arguments, answer in zip(sample["arguments"], sample["resps"], strict=True):
            told.append(answer[0])
            pairs.append(lm._encode_pair(*arguments))
    assert len(told) == 18
    for one, own in zip(told, own_forward(server, pairs), strict=True):
        assert abs(float(one[0]) - own[0]) <= TOLERANCE, (one, own)
        assert (str(one[1]) == "True") == own[1], (one, own)


@scenarios
def likelihoods_of_token_ids(server: Server) -> None:
    """Equal to mlx-lm's own forward, one request after the other."""
    compare(server, connected(server, tokenized_requests=True))


@scenarios
def likelihoods_in_batches(server: Server) -> None:
    """Several prompts in a request and several requests at once change none of them."""
    compare(server, connected(server, tokenized_requests=True, batch_size=4, num_concurrent=2))


@scenarios
def generation(server: Server) -> None:
    lm = connected(server, tokenized_requests=False)
    arguments = ("One two three", {"until": ["\n"], "max_gen_toks": 8, "temperature": 0})
    request = Instance("generate_until", {}, arguments, 0, ("capitals", 0, 1))
    texts = lm.generate_until([request])
    assert len(texts) == 1 and "\n" not in texts[0]


if __name__ == "__main__":
    scenarios.main()
