"""What pyproject.toml cannot say: the wheel is for one platform and any Python 3.

It holds programs, and a library that is loaded by ctypes; neither knows Python's ABI.
"""

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel


class PlatformDistribution(Distribution):
    """Goes where a package with compiled modules goes."""

    def has_ext_modules(self) -> bool:
        return True


class AnyPythonWheel(bdist_wheel):
    """A wheel with the tag py3-none-PLATFORM."""

    def get_tag(self) -> tuple[str, str, str]:
        return ("py3", "none", super().get_tag()[2])


setup(distclass=PlatformDistribution, cmdclass={"bdist_wheel": AnyPythonWheel})
