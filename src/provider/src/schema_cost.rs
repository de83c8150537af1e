//! Decides whether arguments can be checked against a schema in bounded time.
//!
//! Upstreams write their schemas themselves, and projects define their document types. Even a short schema can keep a
//! validator busy for years: forty definitions that each refer to the next one twice, or a recursion that enters the
//! same value in two ways. The gateway checks arguments only to find mistakes before a reviewer is asked, and the
//! upstream checks them anyway, so the check of an expensive schema is left to the upstream. A document type with such
//! a schema is rejected.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Maximum number of times that all schemas of a definition are applied to one value, counted over all paths.
const MAX_APPLICATIONS: u64 = 20_000;
/// Maximum number of schemas in a definition that are analysed.
const MAX_NODES: usize = 100_000;
/// A schema with `unevaluated…` keywords applies its sibling schemas again, up to this number of times.
const REAPPLICATION_FACTOR: u64 = 4;

/// Returns `true` if checking a value against the schema takes bounded time.
#[must_use]
pub fn is_bounded(schema: &Value) -> bool {
    SchemaGraph::build(schema).is_some_and(|graph| graph.is_bounded())
}

/// The schemas of a definition, and which schemas each of them applies.
#[derive(Default)]
struct SchemaGraph {
    edges: Vec<Vec<usize>>,
    /// Edges to schemas of different members: for one value, only one of them is taken.
    alternatives: Vec<Vec<usize>>,
    /// The schema has `unevaluated…` keywords, so it applies its siblings again.
    reapplies: Vec<bool>,
}

impl SchemaGraph {
    /// Returns `None` if the definition is too large.
    fn build(root: &Value) -> Option<Self> {
        let has_anchors = has_named_anchors(root);
        let mut graph = Self::default();
        let mut indices: HashMap<*const Value, usize> = HashMap::new();
        let mut pending = vec![root];
        indices.insert(root, 0);
        graph.add();
        // A work list instead of recursion, because references make chains of any length.
        while let Some(schema) = pending.pop() {
            let index = *indices.get(&std::ptr::from_ref(schema))?;
            let Some(members) = schema.as_object() else { continue };
            graph.reapplies[index] = members.keys().any(|key| key.starts_with("unevaluated"));
            let mut index_of = |graph: &mut Self, to: &'_ Value| -> Option<usize> {
                // The pointer stays valid as long as the root, which contains the schema.
                let key = std::ptr::from_ref(to);
                if let Some(&index) = indices.get(&key) {
                    return Some(index);
                }
                if indices.len() >= MAX_NODES {
                    return None;
                }
                let index = graph.add();
                indices.insert(key, index);
                Some(index)
            };
            for (to, apart) in subschemas(root, members, has_anchors) {
                let before = graph.edges.len();
                let target = index_of(&mut graph, to)?;
                if target == before {
                    pending.push(to);
                }
                if apart { graph.alternatives[index].push(target) } else { graph.edges[index].push(target) }
            }
        }
        Some(graph)
    }

    fn add(&mut self) -> usize {
        self.edges.push(Vec::new());
        self.alternatives.push(Vec::new());
        self.reapplies.push(false);
        self.edges.len() - 1
    }

    fn successors(&self, index: usize) -> impl Iterator<Item = usize> + '_ {
        self.edges[index].iter().chain(&self.alternatives[index]).copied()
    }

    /// Counts the paths to each schema. A recursion is accepted if it has only one way, since it ends at the depth of
    /// the value.
    fn is_bounded(&self) -> bool {
        let is_recursive = self.recursive_nodes();
        let mut incoming = vec![0_usize; self.edges.len()];
        for index in (0..self.edges.len()).filter(|&index| !is_recursive[index]) {
            self.successors(index).for_each(|to| incoming[to] += 1);
        }
        // Schemas reachable from a recursion are counted after all entries into recursions are known.
        let mut from_recursion = vec![0_usize; self.edges.len()];
        for index in (0..self.edges.len()).filter(|&index| is_recursive[index]) {
            let within = self.edges[index].iter().filter(|&&to| is_recursive[to]).count()
                + usize::from(self.alternatives[index].iter().any(|&to| is_recursive[to]));
            if within > 1 || self.reapplies[index] {
                return false;
            }
            self.successors(index).filter(|&to| !is_recursive[to]).for_each(|to| from_recursion[to] += 1);
        }
        let mut paths = vec![0_u64; self.edges.len()];
        paths[0] = 1;
        let mut ready: Vec<usize> = (0..incoming.len())
            .filter(|&index| incoming[index] + from_recursion[index] == 0 && !is_recursive[index])
            .collect();
        let (mut total, mut entries, mut entered) = (0_u64, u64::from(is_recursive[0]), false);
        loop {
            while let Some(index) = ready.pop() {
                total = total.saturating_add(paths[index]);
                let contribution =
                    paths[index].saturating_mul(if self.reapplies[index] { REAPPLICATION_FACTOR } else { 1 });
                for to in self.successors(index) {
                    if is_recursive[to] {
                        entries = entries.saturating_add(contribution);
                        continue;
                    }
                    paths[to] = paths[to].saturating_add(contribution);
                    incoming[to] -= 1;
                    if incoming[to] + from_recursion[to] == 0 {
                        ready.push(to);
                    }
                }
            }
            if std::mem::replace(&mut entered, true) {
                return total <= MAX_APPLICATIONS;
            }
            for index in (0..is_recursive.len()).filter(|&index| is_recursive[index]) {
                total = total.saturating_add(entries);
                for to in self.successors(index).filter(|&to| !is_recursive[to]) {
                    paths[to] = paths[to].saturating_add(entries);
                    from_recursion[to] -= 1;
                    if incoming[to] + from_recursion[to] == 0 {
                        ready.push(to);
                    }
                }
            }
        }
    }

    /// Returns the schemas that lie on a cycle of references, or between two cycles.
    fn recursive_nodes(&self) -> Vec<bool> {
        let count = self.edges.len();
        let mut predecessors: Vec<Vec<usize>> = vec![Vec::new(); count];
        for index in 0..count {
            self.successors(index).for_each(|to| predecessors[to].push(index));
        }
        let mut remaining = vec![true; count];
        let mut peel = |to: &dyn Fn(usize) -> Vec<usize>, degrees: Vec<usize>| {
            let mut degrees = degrees;
            let mut ready: Vec<usize> = (0..count).filter(|&index| degrees[index] == 0).collect();
            while let Some(index) = ready.pop() {
                remaining[index] = false;
                for next in to(index) {
                    degrees[next] -= 1;
                    if degrees[next] == 0 {
                        ready.push(next);
                    }
                }
            }
        };
        peel(&|index| self.successors(index).collect(), predecessors.iter().map(Vec::len).collect());
        peel(&|index| predecessors[index].clone(), (0..count).map(|index| self.successors(index).count()).collect());
        remaining
    }
}

/// Returns the schemas that a schema applies, each with whether it applies to a value of its own.
fn subschemas<'a>(root: &'a Value, members: &'a Map<String, Value>, named: bool) -> Vec<(&'a Value, bool)> {
    let mut found: Vec<(&Value, bool)> = Vec::new();
    for (key, value) in members {
        match (key.as_str(), value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(to)) => match to.strip_prefix('#') {
                Some(pointer) if !named && (pointer.is_empty() || pointer.starts_with('/')) => {
                    let pointer = percent_encoding::percent_decode_str(pointer).decode_utf8_lossy();
                    found.extend(root.pointer(&pointer).map(|to| (to, false)));
                }
                // The target depends on anchors. The worst case is assumed: two references to the root.
                _ if named => found.extend([(root, false), (root, false)]),
                // A reference to another document, which is never fetched.
                _ => {}
            },
            ("$defs" | "definitions" | "enum" | "const" | "default" | "examples", _) => {}
            ("properties", Value::Object(map)) => found.extend(map.values().map(|value| (value, true))),
            ("patternProperties" | "dependentSchemas" | "dependencies", Value::Object(map)) => {
                found.extend(map.values().map(|value| (value, false)));
            }
            (_, Value::Object(_)) => found.push((value, false)),
            (_, Value::Array(items)) => found.extend(items.iter().map(|item| (item, false))),
            _ => {}
        }
    }
    found.retain(|(value, _)| value.is_object());
    found
}

/// Returns `true` if the schema has anchors or nested ids, which can redirect any reference.
fn has_named_anchors(root: &Value) -> bool {
    let mut pending = vec![(root, true)];
    while let Some((value, first)) = pending.pop() {
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    let name =
                        matches!(key.as_str(), "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" | "$dynamicRef")
                            || (matches!(key.as_str(), "$id" | "id") && !first);
                    if name && !value.is_object() {
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
        assert!(is_bounded(&json!({ "properties": { "s": { "$ref": "https://example.com/b" } } })), "never followed");
    }
}
