//! Defines types of documents: their folders, and the requirements on their front matter.

use jsonschema::error::{ValidationError, ValidationErrorKind};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};
use sha2::{Digest as _, Sha256};

use super::{budget::Budget, document, front_matter, schemas};
use crate::model::Document;
use countersign_provider::{
    compiled_schema::{CompiledSchema, PatternEngine},
    schema_cost::is_bounded,
};

/// The maximum number of types that a project defines.
const MAX_CUSTOM_TYPES: usize = 50;
/// The maximum number of bytes of a schema's file.
pub(crate) const MAX_SCHEMA_BYTES: usize = 64 << 10;
/// The maximum number of faults of one document.
const MAX_FAULTS: usize = 50;
/// The maximum number of faults in a one-line summary. Faults that name allowed values are all listed.
const MAX_FAULTS_IN_LINE: usize = 3;
/// The maximum number of characters of a fault's message.
const MAX_MESSAGE_CHARS: usize = 300;
/// The maximum number of characters of a message that lists the allowed values.
const MAX_ENUM_MESSAGE_CHARS: usize = 2000;

/// A type of documents.
#[derive(Debug)]
pub(crate) struct DocType {
    pub name: String,
    pub description: String,
    /// The folder, relative to that of the documents.
    pub folder: String,
    /// The path of its schema in the project; `None` for a built-in type.
    pub schema_path: Option<String>,
    /// The JSON Schema of the front matter.
    pub schema: Value,
    compiled_schema: CompiledSchema,
}

/// The types of a project.
#[derive(Debug)]
pub(crate) struct DocTypes {
    all: Vec<DocType>,
    /// Validates documents without a type.
    untyped: Option<CompiledSchema>,
}

/// A mismatch between a front matter and its type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(description = "")]
pub(crate) struct Fault {
    /// A JSON pointer; empty for the whole.
    pub pointer: String,
    /// The violated keyword.
    pub rule: String,
    pub message: String,
}

/// The reason why a document is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum DocumentRefusal {
    UnknownType {
        name: String,
        known_types: Vec<String>,
    },
    Schema {
        faults: Vec<Fault>,
    },
    /// The text cannot be parsed as a document, or not in time.
    Unparsable {
        reason: String,
    },
}

impl DocumentRefusal {
    /// Summarizes the faults in one line.
    pub fn summary(&self) -> String {
        match self {
            Self::UnknownType { name, known_types } => {
                format!("there is no type {name}; there are {}", known_types.join(", "))
            }
            Self::Unparsable { reason } => reason.clone(),
            Self::Schema { faults } => {
                let (choices, others): (Vec<_>, Vec<_>) = faults.iter().partition(|fault| fault.rule == "enum");
                let max_messages = MAX_FAULTS_IN_LINE.max(choices.len());
                let messages =
                    choices.into_iter().chain(others).take(max_messages).map(|fault| match fault.pointer.as_str() {
                        "" => fault.message.clone(),
                        pointer => format!("{pointer}: {}", fault.message),
                    });
                let more_count = faults.len().checked_sub(max_messages).filter(|count| *count > 0);
                let more_note = more_count.map(|count| format!("and {count} more"));
                messages.chain(more_note).collect::<Vec<_>>().join("; ")
            }
        }
    }
}

/// A document that matches its type.
#[derive(Debug)]
pub(crate) struct CheckedDocument {
    pub document: Document,
    /// Its front matter.
    pub fields: Map<String, Value>,
}

/// Compiles a schema for the front matter of documents.
fn compile(schema: &Value) -> Result<CompiledSchema, String> {
    // A project's regular expressions must run in linear time.
    CompiledSchema::compile(schema, None, PatternEngine::Linear)
        .map_err(|error| error.to_string().chars().take(MAX_MESSAGE_CHARS).collect())
}

impl DocTypes {
    /// Returns the types that every project has.
    pub fn built_in() -> Self {
        let all = schemas::built_in().filter_map(|definition| {
            let schemas::TypeDefinition { name, description, folder, schema } = definition;
            let compiled_schema = compile(&schema).ok()?;
            Some(DocType { name, description, folder, schema_path: None, schema, compiled_schema })
        });
        Self { all: all.collect(), untyped: compile(&schemas::untyped_schema()).ok() }
    }

    /// Returns the built-in types and a project's own ones, given as paths and texts of their files. Also returns the paths of
    /// skipped files with the reasons.
    pub fn with_custom(files: Vec<(String, String)>) -> (Self, Vec<(String, String)>) {
        let mut types = Self::built_in();
        let mut skipped = Vec::new();
        for (index, (path, text)) in files.into_iter().enumerate() {
            let added =
                if index < MAX_CUSTOM_TYPES { types.add(&path, &text) } else { Err("there are too many".to_owned()) };
            if let Err(reason) = added {
                skipped.push((path, reason));
            }
        }
        (types, skipped)
    }

    fn add(&mut self, path: &str, text: &str) -> Result<(), String> {
        if text.len() > MAX_SCHEMA_BYTES {
            return Err(format!("it is longer than {MAX_SCHEMA_BYTES} bytes"));
        }
        let file = path.rsplit('/').next().unwrap_or(path);
        let stem = file.split('.').next().unwrap_or(file);
        let schemas::TypeDefinition { name, description, folder, schema } = schemas::parse_custom(stem, text)?;
        let is_name = |text: &str| {
            (1..=64).contains(&text.len())
                && text.starts_with(|c: char| c.is_ascii_alphanumeric())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        };
        if !is_name(&name) {
            return Err("its name has other characters than letters, digits, - and _".to_owned());
        }
        if !folder.split('/').all(is_name) {
            return Err("its folder is not a plain relative path below the folder of the documents".to_owned());
        }
        if folder == "schemas" {
            return Err("its folder is that of the schemas".to_owned());
        }
        if let Some(other) = self.all.iter().find(|kind| kind.name == name || kind.folder == folder) {
            return Err(format!("its name or folder is that of the type {}", other.name));
        }
        if !is_bounded(&schema) {
            return Err("its schema is too intricate to be checked in a bounded time".to_owned());
        }
        let compiled_schema = compile(&schema)?;
        let schema_path = Some(path.to_owned());
        self.all.push(DocType { name, description, folder, schema_path, schema, compiled_schema });
        Ok(())
    }

    pub fn all(&self) -> impl Iterator<Item = &DocType> {
        self.all.iter()
    }

    pub fn get(&self, name: &str) -> Option<&DocType> {
        self.all.iter().find(|kind| kind.name == name)
    }

    /// Returns a digest of everything that decides about the type and the faults of a document.
    pub fn digest(&self) -> [u8; 32] {
        let kinds: Vec<_> = self.all.iter().map(|kind| (&kind.name, &kind.folder, &kind.schema)).collect();
        Sha256::digest(json!([schemas::untyped_schema(), kinds]).to_string()).into()
    }

    /// Returns the type whose folder contains the document.
    pub fn type_for_path(&self, path: &str) -> Option<&DocType> {
        let contains =
            |kind: &&DocType| path.strip_prefix(kind.folder.as_str()).is_some_and(|rest| rest.starts_with('/'));
        self.all.iter().filter(contains).max_by_key(|kind| kind.folder.len())
    }

    /// Parses a proposed document for this path, and checks it against its type.
    ///
    /// # Errors
    /// Returns all its faults.
    pub fn check(&self, path: &str, text: &str) -> Result<CheckedDocument, DocumentRefusal> {
        let fields = self.check_fields(path, text)?;
        let document = document::parse_with_fields(path, text, self, &fields, &mut Budget::new());
        let document = document.map_err(|_| DocumentRefusal::Unparsable {
            reason: "it takes too long to read; make it shorter, or its Markdown simpler".to_owned(),
        })?;
        Ok(CheckedDocument { document, fields })
    }

    /// Parses the front matter of a document for this path, and checks it.
    ///
    /// # Errors
    /// Fails as [`DocTypes::check`] does.
    pub fn check_fields(&self, path: &str, text: &str) -> Result<Map<String, Value>, DocumentRefusal> {
        if let Some(position) = text.find('\0') {
            return Err(DocumentRefusal::Unparsable { reason: format!("it has a NUL character (byte {position})") });
        }
        let fields = front_matter::parse_fields(text).map_err(|error| {
            let (pointer, rule) = (String::new(), "yaml".to_owned());
            DocumentRefusal::Schema { faults: vec![Fault { pointer, rule, message: error.to_string() }] }
        })?;
        let folder_type = self.type_for_path(path);
        let kind = match fields.get("doc_type") {
            None => folder_type,
            Some(Value::String(name)) => Some(self.get(name).ok_or_else(|| DocumentRefusal::UnknownType {
                name: name.clone(),
                known_types: self.all().map(|kind| kind.name.clone()).collect(),
            })?),
            Some(_) => {
                let fault = doc_type_fault("type", "it is not a string");
                return Err(DocumentRefusal::Schema { faults: vec![fault] });
            }
        };
        let mut faults = match kind.map(|kind| &kind.compiled_schema).or(self.untyped.as_ref()) {
            Some(schema) => find_faults(schema, &fields),
            None => Vec::new(),
        };
        if let Some(kind) = kind
            && folder_type.is_none_or(|folder_type| folder_type.name != kind.name)
        {
            let message =
                format!("a document of the type {} lies in {}/, and this path does not", kind.name, kind.folder);
            faults.push(doc_type_fault("folder", &message));
        }
        if faults.is_empty() { Ok(fields) } else { Err(DocumentRefusal::Schema { faults }) }
    }
}

/// Returns a fault of the type that a document names.
fn doc_type_fault(rule: &str, message: &str) -> Fault {
    Fault { pointer: "/doc_type".to_owned(), rule: rule.to_owned(), message: message.to_owned() }
}

/// Returns the message of a fault, with all allowed values.
fn fault_message(error: &ValidationError<'_>) -> String {
    let cut = |text: String, max_chars| text.chars().take(max_chars).collect::<String>();
    let ValidationErrorKind::Enum { options } = error.kind() else { return cut(error.to_string(), MAX_MESSAGE_CHARS) };
    let value = cut(error.instance().to_string(), MAX_MESSAGE_CHARS / 3);
    let all: Vec<String> = options.as_array().into_iter().flatten().map(ToString::to_string).collect();
    cut(format!("{value} is not one of {}", all.join(", ")), MAX_ENUM_MESSAGE_CHARS)
}

/// Validates the fields of a front matter, and returns the faults.
fn find_faults(schema: &CompiledSchema, fields: &Map<String, Value>) -> Vec<Fault> {
    let value = json!(fields);
    if schema.is_valid(&value) {
        return Vec::new();
    }
    let to_fault = |error: ValidationError<'_>| Fault {
        pointer: error.instance_path().to_string(),
        rule: error.kind().keyword().to_owned(),
        message: fault_message(&error),
    };
    schema.iter_errors(&value).take(MAX_FAULTS).map(to_fault).collect()
}

#[cfg(test)]
mod tests;
