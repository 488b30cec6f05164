"""Training. To be read in this order:

- :mod:`.config`: what a TOML file says.
- :mod:`.build`: the networks, the steerer and the objective that it asks for; :mod:`.feed`: its pairs, in batches.
- :mod:`.loop`: gradient descent, and what held-out pairs say.
- :mod:`.objectives`: what is minimised.
- :mod:`.run_folder`: what a run writes, and how it is read back; :mod:`.spectrum`: its eigenvalues.

:mod:`.fit_steerer` is the short way for a frozen descriptor (Setting A).
"""
