pytest_plugins = ["pypto_gym.tools.harness.pytest_plugin"]
