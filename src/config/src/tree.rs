//! Parses YAML into a tree that keeps the position of every key and value. It does not interpret keys.

use std::{collections::HashSet, fmt};

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use serde_saphyr::Spanned;

/// A YAML value without its position.
#[derive(Clone, Debug, PartialEq)]
pub enum Node {
    Null,
    Bool(bool),
    Int(i128),
    Float(f64),
    Text(String),
    List(Vec<LocatedNode>),
    Map(Vec<KeyValue>),
}

/// A YAML value with its line and column, counted from 1.
#[derive(Clone, Debug, PartialEq)]
pub struct LocatedNode {
    pub node: Node,
    pub line: u64,
    pub column: u64,
}

/// A key with its position and value.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyValue {
    pub key: String,
    pub line: u64,
    pub column: u64,
    pub value: LocatedNode,
}

/// A syntax error of a YAML text.
#[derive(Clone, Debug)]
pub struct SyntaxError {
    pub message: String,
    /// Counted from 1; 0 if unknown.
    pub line: u64,
    pub column: u64,
}

/// Returns the value of a key in a map.
pub(crate) fn find_value<'a>(entries: &'a [KeyValue], key: &str) -> Option<&'a Node> {
    entries.iter().find(|entry| entry.key == key).map(|entry| &entry.value.node)
}

impl Node {
    /// Returns a description of the value's type for messages.
    pub const fn describe_kind(&self) -> &'static str {
        match self {
            Self::Null => "nothing",
            Self::Bool(_) => "true or false",
            Self::Int(_) | Self::Float(_) => "a number",
            Self::Text(_) => "a text",
            Self::List(_) => "a list",
            Self::Map(_) => "a map",
        }
    }

    /// Returns the text, unless the value is of another type.
    pub fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    /// Returns the entries of a map; none for another value.
    pub fn entries(&self) -> &[KeyValue] {
        match self {
            Self::Map(entries) => entries,
            _ => &[],
        }
    }

    /// Converts the value to JSON. [`parse`] refuses the numbers that JSON lacks.
    pub fn to_json(&self) -> Value {
        match self {
            Self::Null => Value::Null,
            Self::Bool(value) => Value::Bool(*value),
            Self::Int(number) => Number::from_i128(*number).map_or(Value::Null, Value::Number),
            Self::Float(number) => Number::from_f64(*number).map_or(Value::Null, Value::Number),
            Self::Text(text) => Value::String(text.clone()),
            Self::List(items) => items.iter().map(|item| item.node.to_json()).collect(),
            Self::Map(entries) => Value::Object(to_json_map(entries)),
        }
    }
}

/// Converts the entries of a map to JSON.
pub(crate) fn to_json_map(entries: &[KeyValue]) -> Map<String, Value> {
    entries.iter().map(|entry| (entry.key.clone(), entry.value.node.to_json())).collect()
}

/// Parses one YAML document, which may also be JSON. An empty document is [`Node::Null`].
///
/// # Errors
/// Invalid syntax, duplicate keys, numbers that are not finite, several documents, or excessive nesting or aliases.
pub fn parse(text: &str) -> Result<LocatedNode, SyntaxError> {
    let options = serde_saphyr::options! {
        // `yes`, `on` and `no` stay texts; keys that take a boolean report them.
        strict_booleans: true,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_events: 100_000,
            max_depth: 32,
            max_aliases: 100,
        },
    };
    serde_saphyr::from_str_with_options::<LocatedNode>(text, options).map_err(|error| {
        let location = error.location();
        SyntaxError {
            message: shorten_message(&error.to_string()),
            line: location.map_or(0, |l| l.line()),
            column: location.map_or(0, |l| l.column()),
        }
    })
}

/// Returns the message of the library without its position, its advice for programmers and its further lines.
fn shorten_message(message: &str) -> String {
    let line = message.lines().next().unwrap_or_default();
    let line = line.strip_prefix("error: ").unwrap_or(line);
    let ends = [" at line ", ", set DuplicateKeyPolicy"].iter().filter_map(|end| line.find(end));
    let end = ends.min().unwrap_or(line.len());
    line.get(..end).unwrap_or(line).trim_end_matches('.').to_owned()
}

impl<'de> Deserialize<'de> for LocatedNode {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let spanned = Spanned::<Node>::deserialize(deserializer)?;
        Ok(Self { node: spanned.value, line: spanned.referenced.line(), column: spanned.referenced.column() })
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a YAML value")
    }
    fn visit_unit<E>(self) -> Result<Node, E> {
        Ok(Node::Null)
    }
    fn visit_bool<E>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Bool(value))
    }
    fn visit_i64<E>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Int(value.into()))
    }
    fn visit_u64<E>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Int(value.into()))
    }
    fn visit_f64<E>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Float(value))
    }
    fn visit_str<E>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Text(value.to_owned()))
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut entries = Vec::new();
        let mut names = HashSet::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            // The parser distinguishes `1` and `"1"`, but a map of JSON does not.
            if !names.insert(key.value.clone()) {
                return Err(A::Error::custom(format_args!("duplicate mapping key: {}", key.value)));
            }
            let (line, column) = (key.referenced.line(), key.referenced.column());
            entries.push(KeyValue { key: key.value, line, column, value: map.next_value()? });
        }
        Ok(Node::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(located: &LocatedNode, index: usize) -> KeyValue {
        match &located.node {
            Node::Map(entries) => entries[index].clone(),
            other => panic!("not a map: {other:?}"),
        }
    }

    #[test]
    fn keys_and_values_keep_their_positions() {
        let tree = parse("# comment\nlisten: 127.0.0.1:1\nauth:\n  mode: keys\n").unwrap();
        let listen = entry(&tree, 0);
        assert_eq!((listen.key.as_str(), listen.line, listen.column), ("listen", 2, 1));
        assert_eq!(listen.value.node, Node::Text("127.0.0.1:1".into()));
        assert_eq!((listen.value.line, listen.value.column), (2, 9));
        let mode = entry(&entry(&tree, 1).value, 0);
        assert_eq!((mode.key.as_str(), mode.line, mode.value.line, mode.value.column), ("mode", 4, 4, 9));
    }

    #[test]
    fn json_and_empty_files_are_parsed() {
        let tree = parse("{\"a\": {\"b\": [1, true, null, \"x\"]}}").unwrap();
        let Node::List(items) = entry(&entry(&tree, 0).value, 0).value.node else { panic!("no list") };
        let nodes: Vec<Node> = items.into_iter().map(|s| s.node).collect();
        assert_eq!(nodes, [Node::Int(1), Node::Bool(true), Node::Null, Node::Text("x".into())]);
        assert_eq!(parse("").unwrap().node, Node::Null);
        assert_eq!(parse("# only a comment\n").unwrap().node, Node::Null);
    }

    #[test]
    fn scalars_of_yaml_1_1_stay_texts() {
        let tree = parse("a: yes\nb: off\nc: true").unwrap();
        assert_eq!(entry(&tree, 0).value.node, Node::Text("yes".into()));
        assert_eq!(entry(&tree, 1).value.node, Node::Text("off".into()));
        assert_eq!(entry(&tree, 2).value.node, Node::Bool(true));
    }

    #[test]
    fn syntax_error_names_its_line() {
        let error = parse("a: 1\nb: [1, 2\nc: 3\n").unwrap_err();
        assert!(error.line >= 2, "{error:?}");
        let error = parse("a: 1\na: 2\n").unwrap_err();
        assert_eq!(error.line, 2, "{error:?}");
        assert!(error.message.to_lowercase().contains("duplicate"), "{error:?}");
        assert!(!error.message.contains("line") && !error.message.contains("Options"), "{error:?}");
        assert!(parse("a: 1\n---\nb: 2\n").is_err());
    }

    #[test]
    fn values_that_json_lacks_are_refused() {
        for text in ["a: .nan", "a: [-.inf]", "{ a: 1e999 }", "a: !!float .inf", "{ 1: a, \"1\": b }"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn hostile_files_are_refused() {
        assert!(parse(&"[".repeat(5000)).is_err());
        let mut bomb = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n");
        for i in 1..12 {
            let alias = format!("*a{}", i - 1);
            bomb.push_str(&format!("a{i}: &a{i} [{}]\n", vec![alias; 10].join(",")));
        }
        assert!(parse(&bomb).is_err());
    }
}
