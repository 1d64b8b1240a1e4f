from hypothesis import settings

# A busy machine is no failure: examples have no time limit here.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
