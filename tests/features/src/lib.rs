//! Nothing: the manifest is what this is about.
