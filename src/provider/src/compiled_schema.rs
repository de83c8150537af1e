//! Compiles JSON Schemas and checks values against them.
//!
//! The compiler of `jsonschema` is generic, so each crate that calls it contains a copy of it. Other crates use this module
//! instead.

use jsonschema::{Draft, ErrorIterator, PatternOptions, ValidationError, Validator};
use serde_json::Value;

/// Maximum number of bytes of a compiled pattern of a schema.
const MAX_PATTERN_BYTES: usize = 1 << 20;

/// The engine that matches the patterns of a schema.
#[derive(Clone, Copy, Debug)]
pub enum PatternEngine {
    /// Matches in linear time, and refuses patterns with look-around or back-references.
    Linear,
    /// Accepts these patterns too, but may take exponential time.
    Backtracking,
}

/// A compiled JSON Schema. Formats are asserted, and references to other documents are not fetched.
#[derive(Debug)]
pub struct CompiledSchema(Validator);

impl CompiledSchema {
    /// Compiles a schema of this draft, or of the one that it declares. Without a declaration, 2020-12 applies.
    ///
    /// # Errors
    /// Fails if the schema is invalid, refers to another document, or has a pattern that the engine refuses.
    pub fn compile(
        schema: &Value,
        draft: Option<Draft>,
        engine: PatternEngine,
    ) -> Result<Self, ValidationError<'static>> {
        let mut options = jsonschema::options().should_validate_formats(true);
        if let Some(draft) = draft {
            options = options.with_draft(draft);
        }
        if let PatternEngine::Linear = engine {
            options = options.with_pattern_options(PatternOptions::regex().size_limit(MAX_PATTERN_BYTES));
        }
        options.build(schema).map(Self)
    }

    /// Returns `true` if the value matches the schema.
    pub fn is_valid(&self, value: &Value) -> bool {
        self.0.is_valid(value)
    }

    /// Returns all mismatches between the value and the schema.
    pub fn iter_errors<'a>(&'a self, value: &'a Value) -> ErrorIterator<'a> {
        self.0.iter_errors(value)
    }
}
