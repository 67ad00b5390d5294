"""Maps the folders of this repository onto the import packages pypto_gym.ops, pypto_gym.models and pypto_gym.tools."""

from setuptools import find_namespace_packages, setup

FOLDERS = ("ops", "models", "tools")

setup(
    packages=["pypto_gym." + package for folder in FOLDERS for package in [folder, *(f"{folder}.{p}" for p in find_namespace_packages(folder))]],
    package_dir={f"pypto_gym.{folder}": folder for folder in FOLDERS},
    package_data={"": ["*.yaml", "*.md"]},
)
