//! Decides whether arguments can be checked against a schema in bounded time.
//!
//! Upstreams write their schemas themselves, and projects define their document types. Even a short schema can keep a
//! validator busy for years: forty definitions that each refer to the next one twice, or a recursion that enters the
//! same value in two ways. The gateway checks arguments only to find mistakes before a reviewer is asked, and the
//! upstream checks them anyway, so the check of an expensive schema is left to the upstream. A document type with such
//! a schema is rejected.

use std::collections::{HashMap, HashSet};

use serde_json::{Map, Value};

/// Maximum number of times that all schemas of a definition are applied to one value, counted over all paths.
const MAX_APPLICATIONS: u64 = 20_000;
/// Maximum number of schemas in a definition that are analysed.
const MAX_NODES: usize = 100_000;
/// A schema with `unevaluated…` keywords applies its sibling schemas again, up to this number of times.
const REAPPLICATION_FACTOR: u64 = 4;

/// Returns `true` if checking a value against the schema takes bounded time.
pub fn is_bounded(schema: &Value) -> bool {
    SchemaGraph::build(schema).is_some_and(|graph| graph.is_bounded())
}

/// A schema of a definition, with the indices of the schemas that it applies.
#[derive(Default)]
struct Node {
    edges: Vec<usize>,
    /// Edges to schemas of different members: for one value, only one of them is taken.
    alternatives: Vec<usize>,
    /// The schema has `unevaluated…` keywords, so it applies its siblings again.
    reapplies: bool,
}

impl Node {
    fn successors(&self) -> impl Iterator<Item = usize> + '_ {
        self.edges.iter().chain(&self.alternatives).copied()
    }
}

/// The schemas of a definition; the first one is its root.
struct SchemaGraph(Vec<Node>);

impl SchemaGraph {
    /// Returns `None` if the definition is too large.
    fn build(root: &Value) -> Option<Self> {
        let has_anchors = has_named_anchors(root);
        let mut nodes: Vec<Node> = Vec::new();
        // A work list instead of recursion, because references make chains of any length.
        let mut schemas = vec![root];
        // The pointers stay valid as long as the root, which contains the schemas.
        let mut indices: HashMap<*const Value, usize> = [(std::ptr::from_ref(root), 0)].into();
        while let Some(schema) = schemas.get(nodes.len()) {
            let mut node = Node::default();
            if let Some(members) = schema.as_object() {
                node.reapplies = members.keys().any(|key| key.starts_with("unevaluated"));
                for (to, is_alternative) in subschemas(root, members, has_anchors) {
                    let index = *indices.entry(std::ptr::from_ref(to)).or_insert(schemas.len());
                    if index == schemas.len() {
                        schemas.push(to);
                    }
                    if is_alternative { &mut node.alternatives } else { &mut node.edges }.push(index);
                }
            }
            nodes.push(node);
            if schemas.len() > MAX_NODES {
                return None;
            }
        }
        Some(Self(nodes))
    }

    /// Adds up the applications over all paths from the root. A recursion is accepted if each of its schemas recurses
    /// in only one way, because the depth of the value then bounds it. Its schemas count once each time a path enters
    /// the recursion.
    fn is_bounded(&self) -> bool {
        let is_recursive = self.recursive_nodes();
        let recurses_once = |node: &Node| {
            let within = node.edges.iter().filter(|&&to| is_recursive[to]).count();
            within + usize::from(node.alternatives.iter().any(|&to| is_recursive[to])) <= 1 && !node.reapplies
        };
        if !self.0.iter().zip(&is_recursive).all(|(node, is_recursive)| !is_recursive || recurses_once(node)) {
            return false;
        }
        let mut total = 1_u64;
        let mut pending = vec![(0, 1_u64)];
        while total <= MAX_APPLICATIONS
            && let Some((index, factor)) = pending.pop()
        {
            let applied = if is_recursive[index] { self.recursion_from(index, &is_recursive) } else { [index].into() };
            total = total.saturating_add(factor.saturating_mul(applied.len() as u64 - 1));
            for node in applied.iter().map(|&index| &self.0[index]) {
                let factor = factor.saturating_mul(if node.reapplies { REAPPLICATION_FACTOR } else { 1 });
                for to in node.successors().filter(|to| !applied.contains(to)) {
                    total = total.saturating_add(factor);
                    pending.push((to, factor));
                }
            }
        }
        total <= MAX_APPLICATIONS
    }

    /// Returns the recursive schemas that are reached from this one.
    fn recursion_from(&self, index: usize, is_recursive: &[bool]) -> HashSet<usize> {
        let mut reached_schemas: HashSet<usize> = [index].into();
        let mut pending = vec![index];
        while let Some(index) = pending.pop() {
            pending.extend(self.0[index].successors().filter(|&to| is_recursive[to] && reached_schemas.insert(to)));
        }
        reached_schemas
    }

    /// Returns the schemas that lie on a cycle of references, or between two cycles.
    fn recursive_nodes(&self) -> Vec<bool> {
        let count = self.0.len();
        let mut predecessors: Vec<Vec<usize>> = vec![Vec::new(); count];
        for (index, node) in self.0.iter().enumerate() {
            node.successors().for_each(|to| predecessors[to].push(index));
        }
        let mut remaining = vec![true; count];
        let mut peel = |neighbours: &dyn Fn(usize) -> Vec<usize>, mut degrees: Vec<usize>| {
            let mut ready: Vec<usize> = (0..count).filter(|&index| degrees[index] == 0).collect();
            while let Some(index) = ready.pop() {
                remaining[index] = false;
                for next in neighbours(index) {
                    degrees[next] -= 1;
                    if degrees[next] == 0 {
                        ready.push(next);
                    }
                }
            }
        };
        peel(&|index| self.0[index].successors().collect(), predecessors.iter().map(Vec::len).collect());
        let out_degrees = self.0.iter().map(|node| node.successors().count()).collect();
        peel(&|index| predecessors[index].clone(), out_degrees);
        remaining
    }
}

/// Returns the schemas that a schema applies, each with `true` if it applies to a single member of the value.
fn subschemas<'a>(root: &'a Value, members: &'a Map<String, Value>, has_anchors: bool) -> Vec<(&'a Value, bool)> {
    let mut subschemas: Vec<(&Value, bool)> = Vec::new();
    for (key, value) in members {
        match (key.as_str(), value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(to)) => match to.strip_prefix('#') {
                Some(pointer) if !has_anchors && (pointer.is_empty() || pointer.starts_with('/')) => {
                    let pointer = percent_encoding::percent_decode_str(pointer).decode_utf8_lossy();
                    subschemas.extend(root.pointer(&pointer).map(|to| (to, false)));
                }
                // The target depends on anchors, or on what the base of the document is. The worst case is assumed: two
                // references to the root.
                _ => subschemas.extend([(root, false), (root, false)]),
            },
            ("$defs" | "definitions" | "enum" | "const" | "default" | "examples", _) => {}
            ("properties", Value::Object(map)) => subschemas.extend(map.values().map(|value| (value, true))),
            ("patternProperties" | "dependentSchemas" | "dependencies", Value::Object(map)) => {
                subschemas.extend(map.values().map(|value| (value, false)));
            }
            (_, Value::Object(_)) => subschemas.push((value, false)),
            (_, Value::Array(items)) => subschemas.extend(items.iter().map(|item| (item, false))),
            _ => {}
        }
    }
    subschemas.retain(|(value, _)| value.is_object());
    subschemas
}

/// Returns `true` if the schema has anchors or nested ids, which can redirect any reference.
fn has_named_anchors(root: &Value) -> bool {
    let mut pending = vec![(root, true)];
    while let Some((value, is_root)) = pending.pop() {
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    let can_redirect =
                        matches!(key.as_str(), "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" | "$dynamicRef")
                            || (matches!(key.as_str(), "$id" | "id") && !is_root);
                    if can_redirect && !value.is_object() {
                        return true;
                    }
                    pending.push((value, false));
                }
            }
            Value::Array(items) => pending.extend(items.iter().map(|item| (item, false))),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns a schema of `count` definitions, each of which refers to the next one twice.
    fn doubling(count: usize) -> Value {
        let defs = (0..count).map(|n| {
            let next = json!({ "$ref": format!("#/$defs/a{}", n + 1) });
            (format!("a{n}"), json!({ "allOf": [next, next] }))
        });
        let mut defs: Map<String, Value> = defs.collect();
        defs.insert(format!("a{count}"), json!({ "type": "object" }));
        json!({ "type": "object", "$ref": "#/$defs/a0", "$defs": defs })
    }

    #[test]
    fn is_bounded_rejects_exponential_references() {
        assert!(is_bounded(&doubling(8)));
        assert!(!is_bounded(&doubling(40)));
        let mut chain: Map<String, Value> =
            (0..10_000).map(|n| (format!("a{n}"), json!({ "$ref": format!("#/$defs/a{}", n + 1) }))).collect();
        assert!(is_bounded(&json!({ "$ref": "#/$defs/a5000", "$defs": chain.clone() })), "long, and nothing recurses");
        chain.insert("a10000".into(), json!({ "$ref": "#/$defs/a0" }));
        assert!(is_bounded(&json!({ "$ref": "#/$defs/a0", "$defs": chain })));
    }

    #[test]
    fn is_bounded_accepts_only_linear_recursion() {
        let tree = json!({ "type": "object", "properties": { "children": { "items": { "$ref": "#" } } } });
        let pair = json!({ "type": "object", "properties": { "left": { "$ref": "#" }, "right": { "$ref": "#" } } });
        let list = json!({
            "type": "object", "properties": { "a": { "$ref": "#/$defs/node" }, "b": { "$ref": "#/$defs/node" } },
            "$defs": { "node": { "properties": { "next": { "$ref": "#/$defs/node" }, "data": { "type": "string" } } } }
        });
        for schema in [tree, pair, list, json!({ "$ref": "#" }), json!({ "type": "object" }), json!({})] {
            assert!(is_bounded(&schema), "{schema}");
        }
        let twice = json!({ "properties": { "a": { "$ref": "#" } } });
        for schema in [
            json!({ "allOf": [twice, twice] }),
            json!({ "properties": { "a": { "$ref": "#" } }, "patternProperties": { "a": { "$ref": "#" } } }),
            json!({ "properties": { "a": { "$ref": "#" } }, "unevaluatedProperties": false }),
        ] {
            assert!(!is_bounded(&schema), "{schema}");
        }
    }

    #[test]
    fn is_bounded_sees_schemas_named_like_keywords() {
        let hidden = json!({
            "type": "object", "properties": { "definitions": doubling(40)["$defs"]["a0"].clone() },
            "$defs": doubling(40)["$defs"].clone()
        });
        assert!(!is_bounded(&hidden));
        let anchored = json!({ "$ref": "#x", "$defs": { "a": { "$anchor": "x", "type": "object" } } });
        assert!(!is_bounded(&anchored));
        assert!(is_bounded(&json!({ "$id": "https://example.com/a", "properties": { "s": { "$ref": "#/$defs/s" } } })));
    }

    #[test]
    fn is_bounded_rejects_references_that_are_no_plain_pointers() {
        let root = "https://example.com/a";
        for to in ["", root, "https://example.com/a#/$defs/x", "json-schema:///#/$defs/x", "a", "#x", "other.json"] {
            let schema =
                json!({ "$id": root, "properties": { "s": { "$ref": to } }, "$defs": { "x": { "type": "object" } } });
            assert!(!is_bounded(&schema), "{to}");
        }
    }
}
