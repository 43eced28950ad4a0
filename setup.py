"""What pyproject.toml cannot say: a wheel in which nothing was compiled fits every machine, and the
description on PyPI has no files beside it.
"""

import re
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class Wheel(bdist_wheel):
    """Built for this machine if a compiled function is in it, else for all."""

    def run(self) -> None:
        """Compile first, since the wheel's name depends on what came of it."""
        self.run_command("build_ext")
        outputs = self.get_finalized_command("build_ext").get_outputs()
        if not any(Path(output).exists() for output in outputs):
            self.root_is_pure = True
            print(
                "vertizo: nothing could be compiled here (is there a C compiler?); "
                "the wheel is pure Python, and NumPy and PyTorch do the work, more slowly",
                file=sys.stderr,
            )
        super().run()


def description() -> str:
    """README.md for a page elsewhere: with the addresses of files and pictures."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    place = r"(?!https?:|#)([^)]+)\)"
    pictures = "https://raw.githubusercontent.com/vertizo/vertizo/main/"
    text = re.sub(r"(!\[[^]]*\]\()" + place, rf"\1{pictures}\2)", text)
    return re.sub(r"(\]\()" + place, r"\1https://github.com/vertizo/vertizo/blob/main/\2)", text)


setup(
    cmdclass={"bdist_wheel": Wheel},
    long_description=description(),
    long_description_content_type="text/markdown",
)
