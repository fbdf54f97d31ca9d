"""Commands that show and export what a processor keeps."""
