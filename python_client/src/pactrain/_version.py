"""The version of a release: the package's, and both daemons' (base/version.cc.in)."""

__version__ = "0.1.0"
