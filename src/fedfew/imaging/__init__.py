"""Image files to bytes, in this process or in others. Imports numpy and Pillow only, so that such a process starts quickly."""
