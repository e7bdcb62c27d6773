# mypy: ignore-errors
"""Records what transformers computes with tiny random vision models (tests/compute/vision/tiny.py),
so that tests need neither it nor torch: `NAME.npz` with arrays and `NAME.json` with the names and
shapes of the checkpoint's tensors. Not run by the tests.

    python -m venv /tmp/reference
    /tmp/reference/bin/pip install torch==2.13.0+cpu transformers==5.24.0
    PYTHONPATH=. /tmp/reference/bin/python -m tests.data.vision.record

For prompt number i: `ids_i` int32 [T], `logits_i` float32 [T, vocab], for its image number j
`pixels_i_j`, `embeddings_i_j`, and of Qwen3-VL `deepstack_i_j`. Of the Qwen family, `positions_i`
int32 [3, T] and `delta_i`, too. Idefics3 has `seen_i_j` bool [tiles, H, W]: the pixels that are no
padding.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.numpy import load_file, save_file

from tests.compute.vision.tiny import CONFIGS, GRIDS, IMAGE_ID, pixels, prompt, weight

HERE = Path(__file__).parent
Arrays = dict[str, Any]


def model_of(name: str) -> Any:
    """The reference's model, with weights by the names that its checkpoints have."""
    config = CONFIGS[name]
    made = getattr(transformers, config["architectures"][0])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        (path / "config.json").write_text(json.dumps(config))
        read = transformers.AutoConfig.from_pretrained(path)
        made(read).save_pretrained(path)
        shapes = {k: list(v.shape) for k, v in load_file(path / "model.safetensors").items()}
        random = {key: weight(key, shape) for key, shape in shapes.items()}
        save_file(random, path / "model.safetensors", metadata={"format": "pt"})
        (path / "config.json").write_text(json.dumps(config))
        model, info = made.from_pretrained(
            path, output_loading_info=True, attn_implementation="eager", dtype=torch.float32
        )
    assert not info["missing_keys"] - {"lm_head.weight"} and not info["unexpected_keys"], info
    (HERE / f"{name}.json").write_text(json.dumps(shapes, indent=0, sort_keys=True) + "\n")
    return model.eval()


def qwen(name: str, model: Any, number: int, grids: Sequence[tuple[int, int]]) -> Arrays:
    images = [pixels(10 * number + j, (h * w, 3 * 2 * 4 * 4)) for j, (h, w) in enumerate(grids)]
    ids = torch.tensor([prompt([h * w // 4 for h, w in grids])])
    sizes = torch.tensor([[1, h, w] for h, w in grids])
    kinds = (ids == IMAGE_ID).int()
    out: Arrays = {}
    for j, image in enumerate(images):
        found = model.model.get_image_features(torch.tensor(image), sizes[j : j + 1])
        out[f"pixels_{number}_{j}"] = image
        out[f"embeddings_{number}_{j}"] = found.pooler_output[0].numpy()
        if "deepstack_visual_indexes" in CONFIGS[name]["vision_config"]:
            deep = [layer[0].numpy() for layer in found.deepstack_features]
            out[f"deepstack_{number}_{j}"] = np.stack(deep)
    positions, delta = model.model.get_rope_index(ids, kinds, image_grid_thw=sizes)
    logits = model(
        input_ids=ids,
        pixel_values=torch.tensor(np.concatenate(images)),
        image_grid_thw=sizes,
        mm_token_type_ids=kinds,
    ).logits[0]
    out[f"positions_{number}"] = positions[:, 0].numpy().astype(np.int32)
    out[f"delta_{number}"] = np.int32(delta.item())
    return out | {
        f"ids_{number}": ids[0].numpy().astype(np.int32),
        f"logits_{number}": logits.numpy(),
    }


def gemma3(name: str, model: Any, number: int, grids: Sequence[tuple[int, int]]) -> Arrays:
    images = [pixels(10 * number + j, (1, 32, 32, 3)) for j in range(len(grids))]
    ids = torch.tensor([prompt([16] * len(grids))])
    nchw = [torch.tensor(image).permute(0, 3, 1, 2) for image in images]
    out: Arrays = {}
    for j, image in enumerate(nchw):
        out[f"pixels_{number}_{j}"] = images[j]
        found = model.model.get_image_features(image)
        out[f"embeddings_{number}_{j}"] = found.pooler_output[0].numpy()
    kinds = (ids == IMAGE_ID).int()
    logits = model(input_ids=ids, pixel_values=torch.cat(nchw), token_type_ids=kinds).logits[0]
    return out | {
        f"ids_{number}": ids[0].numpy().astype(np.int32),
        f"logits_{number}": logits.numpy(),
    }


def idefics3(name: str, model: Any, number: int, grids: Sequence[tuple[int, int]]) -> Arrays:
    """The first image has two tiles, of which the second is partly padding; others have one."""
    tiles = [2 if j == 0 else 1 for j in range(len(grids))]
    images = [pixels(10 * number + j, (n, 24, 24, 3)) for j, n in enumerate(tiles)]
    seen = [np.ones((n, 24, 24), dtype=np.bool_) for n in tiles]
    seen[0][1, 16:], seen[0][1, :, 12:] = False, False
    ids = torch.tensor([prompt([9 * n for n in tiles])])
    nchw = [torch.tensor(image).permute(0, 3, 1, 2)[None] for image in images]
    out: Arrays = {}
    for j, image in enumerate(nchw):
        out[f"pixels_{number}_{j}"], out[f"seen_{number}_{j}"] = images[j], seen[j]
        found = model.model.get_image_features(image, torch.tensor(seen[j])[None])
        out[f"embeddings_{number}_{j}"] = found.pooler_output[0].numpy()
    logits = model(
        input_ids=ids,
        pixel_values=torch.cat(nchw, dim=1),
        pixel_attention_mask=torch.tensor(np.concatenate(seen))[None],
    ).logits[0]
    return out | {
        f"ids_{number}": ids[0].numpy().astype(np.int32),
        f"logits_{number}": logits.numpy(),
    }


def main() -> None:
    for name in CONFIGS:
        run = {"gemma3": gemma3, "idefics3": idefics3, "smolvlm": idefics3}.get(name, qwen)
        with torch.no_grad():
            model, arrays = model_of(name), Arrays()
            for number, grids in enumerate(GRIDS):
                arrays |= run(name, model, number, grids)
        np.savez_compressed(HERE / f"{name}.npz", **arrays)


if __name__ == "__main__":
    main()
