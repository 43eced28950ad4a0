"""Train from Python and look at the result.

Run: python examples/quickstart.py
"""

from __future__ import annotations

from pathlib import Path

import vertizo as vz

HERE = Path(__file__).parent


def main() -> None:
    experiment = vz.Experiment.from_yaml(HERE / "breast_cancer.yaml", ["seed=1"])
    result = experiment.run()  # run("some/folder") keeps everything on disk
    summary = result.summary
    print(f"parties: {', '.join(summary['parties'])}")
    print(f"test accuracy {summary['test_accuracy']:.3f}, AUC {summary['test_auc']:.3f}")
    print(f"bytes up {summary['bytes_up']:,}, down {summary['bytes_down']:,}")
    print(summary["privacy"]["words"])
    for row in result.metrics[:: len(result.metrics) // 5]:
        print(f"round {row['round']:>5}: validation accuracy {row['validation_accuracy']:.3f}")


if __name__ == "__main__":
    main()
