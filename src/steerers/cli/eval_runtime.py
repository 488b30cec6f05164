"""``steerers eval runtime``: how long description and matching take, beside the paper's Table 4."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from steerers.cli import options
from steerers.cli.eval import add_benchmark, add_common_options, finish, names, start

if TYPE_CHECKING:
    import torch

    from steerers.models.zoo import Model

EXAMPLE = """\
  steerers eval runtime --models dedode-b,dedode-b-c4-perm,dedode-b-so2 --random-weights --device cuda --report out
  steerers eval runtime --models upright-sift --strategies dual-softmax,max-matches,tta:4 --repeats 10
"""


def add_to(benchmarks: Any) -> None:
    """Add the benchmark to the parser."""
    parser = add_benchmark(
        benchmarks,
        "runtime",
        "how long description and matching take",
        "Time description and matching, apart and together, of random image tensors with random keypoints, for every "
        "strategy and for test-time augmentation with 4 and 8 rotations.",
        EXAMPLE,
    )
    add_common_options(
        parser, data=None, models="upright-sift", num_keypoints=5000, max_size=None, cache=False, paper=True
    )
    parser.add_argument(
        "--strategies", type=names, metavar="LIST", help="STRATEGY[:ORDER], with commas between (default: all)"
    )
    parser.add_argument(
        "--size", type=options.positive, default=784, metavar="PX", help="side of the square images: %(default)s"
    )
    parser.add_argument(
        "--repeats", type=options.positive, default=100, metavar="N", help="pairs that are timed: %(default)s"
    )
    parser.add_argument("--warm-up", type=int, default=3, metavar="N", help="pairs before them: %(default)s")
    parser.add_argument(
        "--random-weights", action="store_true", help="models without their weights, which time does not depend on"
    )
    parser.add_argument(
        "--precision",
        default="float32",
        help="float32, or bfloat16 or float16 for DeDoDe and compact (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Time, print, write."""
    device = start(arguments)
    from steerers.benchmarks.report import environment
    from steerers.benchmarks.speed import runtime, workloads

    settings = workloads.Settings(
        arguments.size, arguments.num_keypoints, arguments.repeats, arguments.warm_up, arguments.seed
    )
    models = _load(arguments, device)
    subjects = [workloads.list_subjects(model, arguments.strategies) for model in models]
    rows = [row for group in subjects for row in runtime.measure_model(group, settings, device)]
    report = runtime.make_report(
        rows,
        settings,
        environment(device),
        weights="random" if arguments.random_weights else "trained",
        precision=arguments.precision,
        with_paper=not arguments.no_paper,
    )
    return finish(arguments, report)


def _load(arguments: argparse.Namespace, device: torch.device) -> list[Model]:
    from steerers.benchmarks.runs import load_runs
    from steerers.benchmarks.speed.untrained import build_untrained
    from steerers.models import zoo

    for name in arguments.models:
        if set(name) & set("@:?"):
            raise ValueError(f"cannot time {name!r}: give models by name, detection is not timed; see --strategies")
    if arguments.random_weights:
        if arguments.weights:
            raise ValueError("--weights and --random-weights exclude each other")
        return [zoo.configure(build_untrained(name, arguments.seed), arguments.precision) for name in arguments.models]
    runs = load_runs(
        arguments.models,
        num_keypoints=arguments.num_keypoints,
        max_size=arguments.size,
        device=device,
        weights=arguments.weights or (),
        precision=arguments.precision,
    )
    return [found.pipeline.model for found in runs]
