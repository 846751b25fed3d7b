"""The format of a skill on disk: a folder, its SKILL.md, its files and their signature."""
