from hypothesis import settings

# No test fails because a machine is slow or busy: Hypothesis would refuse an example that takes 200 ms.
settings.register_profile("iop", deadline=None)
settings.load_profile("iop")
