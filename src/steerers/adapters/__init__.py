"""The package in the shapes that other projects have: LightGlue's, kornia's, hloc's and vismatch's.

None of them is imported, but hloc by :func:`steerers.adapters.hloc.register`. See docs/adapters.md.
"""
