//! What clients see: tools, their arguments, previews, resources and the prompt.
