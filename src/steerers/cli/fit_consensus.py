"""``steerers fit-consensus``: what matches must agree in with those around them, learnt from pairs with a truth."""

from __future__ import annotations

import argparse
from pathlib import Path

from steerers._console import Option, noted, positive
from steerers._version import __version__
from steerers.cli import options
from steerers.cli.options import Command


def run(arguments: argparse.Namespace) -> int:
    """Describe, learn, print, write the network."""
    if arguments.out.suffix != ".safetensors":
        raise ValueError(f"cannot write {arguments.out}: the file of a consensus ends in .safetensors")
    options.check_output(arguments.out)
    if arguments.images is None and not arguments.colmap:
        raise ValueError("say what to learn from: --images PHOTOGRAPHS, --colmap RECONSTRUCTION, or both")
    from steerers.models import zoo
    from steerers.pipeline import load
    from steerers.training.fit_consensus import ConsensusOptions, fit_consensus

    how = ConsensusOptions(
        pairs=arguments.num_pairs,
        views=arguments.num_views,
        unrelated=arguments.num_unrelated,
        steps=arguments.steps,
        seed=arguments.seed,
    )
    matcher = load(
        arguments.model,
        detector=arguments.detector,
        weights=arguments.weights or (),
        num_keypoints=2048,
        device=arguments.device,
        consensus=False,
    )
    found = fit_consensus(
        matcher, images=arguments.images, reconstructions=arguments.colmap or (), options=how, progress=noted
    )
    options.say(found.summary())
    recipe = {name: getattr(how, name) for name in ("pairs", "views", "unrelated", "steps", "seed")}
    found.consensus.save(
        arguments.out,
        {
            "model": zoo.find(arguments.model).fitted_to,
            "steerers_version": __version__,
            **{f"recipe.{key}": str(value) for key, value in recipe.items()},
            **{f"pairs.{kind}": str(count) for kind, count in found.counts.items()},
            "recall": f"{found.recall:.4f}",
            "precision": f"{found.precision:.4f}",
        },
    )
    options.say_wrote(arguments.out)
    return 0


COMMAND = Command(
    description="Learn which matches of a model agree with those around them: a small network that neither rotation "
    "nor scale of an image changes, from pairs of reconstructions and views of photographs. Minutes of a CPU.",
    example="""\
  steerers fit-consensus --model compact --images photographs/ --colmap scenes/ -o consensus.safetensors
""",
    options=(
        *options.MODEL,
        Option("--images", "folder of photographs, of which views are made", Path, "DIR"),
        Option(
            "--colmap",
            "COLMAP models without lens distortion, each beside its images/, or a folder of such; several with the "
            "option again",
            Path,
            "DIR",
            action="append",
        ),
        Option("-o --out", "the network, .safetensors", Path, "FILE", required=True),
        Option("--num-pairs", "of each reconstruction at most (default: %(default)s)", positive, "N", 160),
        Option("--num-views", "photographs of which two views are made (default: %(default)s)", positive, "N", 700),
        Option("--num-unrelated", "pairs that have nothing in common (default: %(default)s)", positive, "N", 1400),
        Option("--steps", "of gradient descent (default: %(default)s)", positive, "N", 5000),
        Option("--seed", "the same seed gives the same network, but for rounding", int, "N", 0),
        options.DEVICE,
    ),
    run=run,
)
