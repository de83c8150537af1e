//! Whether arguments can be checked against a schema in a time that its text bounds.
//!
//! An upstream writes its schemas, and a project its types of documents, and a short one can make a validator work for years:
//! forty definitions that each name the next one twice, or a recursion that takes two ways into the same value. The gateway
//! checks arguments only so that a mistake is found before a person is asked, and the upstream checks them anyway: what would
//! take too long is left to it. A type of documents that would is left out.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// How often schemas of one definition may be applied to one value, counted along every way that leads to them.
const MOST: u64 = 20_000;
/// Schemas of one definition that are looked at.
const MAX_NODES: usize = 100_000;
/// What looks for unevaluated members applies what stands beside it again.
const AGAIN: u64 = 4;

/// See the module's page.
#[must_use]
pub fn is_bounded(schema: &Value) -> bool {
    Graph::of(schema).is_some_and(|graph| graph.is_bounded())
}

/// Schemas and what each of them applies.
#[derive(Default)]
struct Graph {
    edges: Vec<Vec<usize>>,
    /// Edges that lead to different values: only one of them is taken for each.
    apart: Vec<Vec<usize>>,
    again: Vec<bool>,
}

impl Graph {
    /// `None` for one that is too large.
    fn of(root: &Value) -> Option<Self> {
        let named = has_names(root);
        let mut graph = Self::default();
        let mut known: HashMap<*const Value, usize> = HashMap::new();
        let mut todo = vec![root];
        known.insert(root, 0);
        graph.add();
        // Nothing recurses: references make chains of any length.
        while let Some(schema) = todo.pop() {
            let at = *known.get(&std::ptr::from_ref(schema))?;
            let Some(members) = schema.as_object() else { continue };
            graph.again[at] = members.keys().any(|key| key.starts_with("unevaluated"));
            let mut place = |graph: &mut Self, to: &'_ Value| -> Option<usize> {
                // Lives as long as the root: it is a part of it.
                let key = std::ptr::from_ref(to);
                if let Some(&place) = known.get(&key) {
                    return Some(place);
                }
                if known.len() >= MAX_NODES {
                    return None;
                }
                let place = graph.add();
                known.insert(key, place);
                Some(place)
            };
            for (to, apart) in applied(root, members, named) {
                let before = graph.edges.len();
                let place = place(&mut graph, to)?;
                if place == before {
                    todo.push(to);
                }
                if apart { graph.apart[at].push(place) } else { graph.edges[at].push(place) }
            }
        }
        Some(graph)
    }

    fn add(&mut self) -> usize {
        self.edges.push(Vec::new());
        self.apart.push(Vec::new());
        self.again.push(false);
        self.edges.len() - 1
    }

    fn after(&self, at: usize) -> impl Iterator<Item = usize> + '_ {
        self.edges[at].iter().chain(&self.apart[at]).copied()
    }

    /// Counts the ways to each schema. A recursion is fine as long as it goes one way: a value is as deep as it is.
    fn is_bounded(&self) -> bool {
        let recursive = self.recursive();
        let mut open = vec![0_usize; self.edges.len()];
        for at in (0..self.edges.len()).filter(|&at| !recursive[at]) {
            self.after(at).for_each(|to| open[to] += 1);
        }
        // What a recursion leads to waits for it.
        let mut outside = vec![0_usize; self.edges.len()];
        for at in (0..self.edges.len()).filter(|&at| recursive[at]) {
            let within = self.edges[at].iter().filter(|&&to| recursive[to]).count()
                + usize::from(self.apart[at].iter().any(|&to| recursive[to]));
            if within > 1 || self.again[at] {
                return false;
            }
            self.after(at).filter(|&to| !recursive[to]).for_each(|to| outside[to] += 1);
        }
        let mut ways = vec![0_u64; self.edges.len()];
        ways[0] = 1;
        let mut ready: Vec<usize> =
            (0..open.len()).filter(|&at| open[at] + outside[at] == 0 && !recursive[at]).collect();
        let (mut total, mut entries, mut entered) = (0_u64, u64::from(recursive[0]), false);
        loop {
            while let Some(at) = ready.pop() {
                total = total.saturating_add(ways[at]);
                let more = ways[at].saturating_mul(if self.again[at] { AGAIN } else { 1 });
                for to in self.after(at) {
                    if recursive[to] {
                        entries = entries.saturating_add(more);
                        continue;
                    }
                    ways[to] = ways[to].saturating_add(more);
                    open[to] -= 1;
                    if open[to] + outside[to] == 0 {
                        ready.push(to);
                    }
                }
            }
            if std::mem::replace(&mut entered, true) {
                return total <= MOST;
            }
            for at in (0..recursive.len()).filter(|&at| recursive[at]) {
                total = total.saturating_add(entries);
                for to in self.after(at).filter(|&to| !recursive[to]) {
                    ways[to] = ways[to].saturating_add(entries);
                    outside[to] -= 1;
                    if open[to] + outside[to] == 0 {
                        ready.push(to);
                    }
                }
            }
        }
    }

    /// What stands in a circle of references, or between two.
    fn recursive(&self) -> Vec<bool> {
        let count = self.edges.len();
        let mut before: Vec<Vec<usize>> = vec![Vec::new(); count];
        for at in 0..count {
            self.after(at).for_each(|to| before[to].push(at));
        }
        let mut left = vec![true; count];
        let mut peel = |to: &dyn Fn(usize) -> Vec<usize>, degrees: Vec<usize>| {
            let mut degrees = degrees;
            let mut ready: Vec<usize> = (0..count).filter(|&at| degrees[at] == 0).collect();
            while let Some(at) = ready.pop() {
                left[at] = false;
                for next in to(at) {
                    degrees[next] -= 1;
                    if degrees[next] == 0 {
                        ready.push(next);
                    }
                }
            }
        };
        peel(&|at| self.after(at).collect(), before.iter().map(Vec::len).collect());
        peel(&|at| before[at].clone(), (0..count).map(|at| self.after(at).count()).collect());
        left
    }
}

/// The schemas that a schema applies, and whether each is applied to a value of its own.
fn applied<'a>(root: &'a Value, members: &'a Map<String, Value>, named: bool) -> Vec<(&'a Value, bool)> {
    let mut found: Vec<(&Value, bool)> = Vec::new();
    for (key, value) in members {
        match (key.as_str(), value) {
            ("$ref" | "$dynamicRef" | "$recursiveRef", Value::String(to)) => match to.strip_prefix('#') {
                Some(pointer) if !named && (pointer.is_empty() || pointer.starts_with('/')) => {
                    let pointer = percent_encoding::percent_decode_str(pointer).decode_utf8_lossy();
                    found.extend(root.pointer(&pointer).map(|to| (to, false)));
                }
                // Where it leads depends on names: at worst to the beginning, in two ways.
                _ if named => found.extend([(root, false), (root, false)]),
                // Elsewhere, and nothing is fetched.
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

/// Whether references may go by names, which make every one of them lead elsewhere than it says.
fn has_names(root: &Value) -> bool {
    let mut todo = vec![(root, true)];
    while let Some((value, first)) = todo.pop() {
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    let name =
                        matches!(key.as_str(), "$anchor" | "$dynamicAnchor" | "$recursiveAnchor" | "$dynamicRef")
                            || (matches!(key.as_str(), "$id" | "id") && !first);
                    if name && !value.is_object() {
                        return true;
                    }
                    todo.push((value, false));
                }
            }
            Value::Array(items) => todo.extend(items.iter().map(|item| (item, false))),
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Each of so many definitions names the next one twice.
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
    fn what_doubles_at_each_step_is_not_checked() {
        assert!(is_bounded(&doubling(8)));
        assert!(!is_bounded(&doubling(40)));
        let mut chain: Map<String, Value> =
            (0..10_000).map(|n| (format!("a{n}"), json!({ "$ref": format!("#/$defs/a{}", n + 1) }))).collect();
        assert!(is_bounded(&json!({ "$ref": "#/$defs/a5000", "$defs": chain.clone() })), "long, and nothing recurses");
        chain.insert("a10000".into(), json!({ "$ref": "#/$defs/a0" }));
        assert!(is_bounded(&json!({ "$ref": "#/$defs/a0", "$defs": chain })));
    }

    #[test]
    fn a_recursion_goes_one_way() {
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
    fn members_that_look_like_keywords_hide_nothing() {
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
