"""Module paths of earlier versions that were documented: `import synflow.NAME` finds the files of this folder."""
