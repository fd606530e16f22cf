"""Of the documentation site (tools/docs.py), for Sphinx."""

import os

project = "PacTrain"
author = "the PacTrain authors"
copyright = author
version = release = os.environ["PACTRAIN_VERSION"]
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"PacTrain {release}"
exclude_patterns = ["BUILD"]
myst_heading_anchors = 4
# What "Attributes:" says of a field is all that is said of it.
napoleon_use_ivar = True
# Types are in signatures, and only there.
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
# A class of its own speaks for itself.
autodoc_default_options = {"members": True, "undoc-members": False, "show-inheritance": True}
