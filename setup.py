"""Maps the folders of this repository onto the import packages pypto_gym.ops, pypto_gym.models and pypto_gym.tools."""

from pathlib import Path

from setuptools import find_namespace_packages, setup

FOLDERS = [folder for folder in ("ops", "models", "tools") if Path(folder).is_dir()]
PACKAGES = [package for folder in FOLDERS for package in (folder, *(f"{folder}.{p}" for p in find_namespace_packages(folder)))]

setup(
    packages=[f"pypto_gym.{package}" for package in PACKAGES],
    package_dir={f"pypto_gym.{folder}": folder for folder in FOLDERS},
    package_data={"": ["*.yaml", "*.md"]},
)
