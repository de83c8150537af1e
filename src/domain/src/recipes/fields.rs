//! Selects fields of records: those that a recipe keeps, and those that it ignores because they change by themselves.

use serde_json::Value;

/// The fields of a record that are shown and fingerprinted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldFilter {
    /// The fields that are kept. Empty means all.
    pub keep: Vec<FieldPath>,
    /// The fields that are removed.
    pub ignore: Vec<FieldPath>,
}

/// A path to fields, such as `metadata.managedFields`. Where a value is a list, the path continues in each of its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldPath(Vec<PathStep>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum PathStep {
    Key(String),
    /// Any key (`*`).
    AnyKey,
    /// Any number of keys (`**`).
    AnyDepth,
}

impl FieldPath {
    /// Parses a path: keys with dots between them, `["key.with.dots"]`, `*` for any key, `**` for any depth.
    pub fn parse(text: &str) -> Option<Self> {
        let mut steps = Vec::new();
        let mut rest = text;
        while !rest.is_empty() {
            if let Some(quoted) = rest.strip_prefix("[\"") {
                let (key, after) = quoted.split_once("\"]")?;
                steps.push(PathStep::Key(key.to_owned()));
                rest = after;
            } else {
                let end = rest.find(['.', '[']).unwrap_or(rest.len());
                steps.push(match &rest[..end] {
                    "" => return None,
                    "*" => PathStep::AnyKey,
                    "**" => PathStep::AnyDepth,
                    key => PathStep::Key(key.to_owned()),
                });
                rest = &rest[end..];
            }
            if let Some(after) = rest.strip_prefix('.') {
                if after.is_empty() {
                    return None;
                }
                rest = after;
            } else if !rest.is_empty() && !rest.starts_with('[') {
                return None;
            }
        }
        let ends_in_field = !matches!(steps.last(), None | Some(PathStep::AnyDepth));
        ends_in_field.then_some(Self(steps))
    }
}

impl FieldFilter {
    pub fn is_empty(&self) -> bool {
        self.keep.is_empty() && self.ignore.is_empty()
    }

    /// Returns the value with the fields that are shown.
    pub fn apply(&self, mut value: Value) -> Value {
        if !self.keep.is_empty() {
            retain(&mut value, &self.keep.iter().map(|path| path.0.as_slice()).collect::<Vec<_>>());
        }
        for path in &self.ignore {
            remove(&mut value, &path.0);
        }
        value
    }
}

/// Removes the fields at a path.
fn remove(value: &mut Value, steps: &[PathStep]) {
    let Some((step, rest)) = steps.split_first() else { return };
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| remove(item, steps)),
        Value::Object(fields) => {
            if *step == PathStep::AnyDepth {
                remove(value, rest);
                if let Value::Object(fields) = value {
                    fields.values_mut().for_each(|field| remove(field, steps));
                }
            } else if rest.is_empty() {
                fields.retain(|key, _| !step.matches(key));
            } else {
                let matching = fields.iter_mut().filter(|(key, _)| step.matches(key));
                matching.for_each(|(_, field)| remove(field, rest));
            }
        }
        _ => {}
    }
}

/// Keeps the fields at these paths, with the records that they are in.
fn retain(value: &mut Value, paths: &[&[PathStep]]) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(|item| retain(item, paths)),
        Value::Object(fields) => fields.retain(|key, field| {
            let rest: Vec<&[PathStep]> = paths.iter().flat_map(|path| remaining_steps(path, key)).collect();
            if rest.iter().any(|path| path.is_empty()) {
                return true;
            }
            // A path that leads further keeps nothing of a text or a number.
            let leads_on = !rest.is_empty() && (field.is_object() || field.is_array());
            if leads_on {
                retain(field, &rest);
            }
            leads_on && !is_empty(field)
        }),
        _ => {}
    }
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

/// Returns the paths that remain below this key.
fn remaining_steps<'p>(path: &'p [PathStep], key: &str) -> Vec<&'p [PathStep]> {
    match path.split_first() {
        Some((PathStep::AnyDepth, rest)) => {
            let mut paths = remaining_steps(rest, key);
            paths.push(path);
            paths
        }
        Some((step, rest)) if step.matches(key) => vec![rest],
        _ => Vec::new(),
    }
}

impl PathStep {
    fn matches(&self, key: &str) -> bool {
        match self {
            Self::Key(name) => name == key,
            Self::AnyKey => true,
            Self::AnyDepth => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn filter(keep: &[&str], ignore: &[&str]) -> FieldFilter {
        let paths = |paths: &[&str]| paths.iter().map(|path| FieldPath::parse(path).expect(path)).collect();
        FieldFilter { keep: paths(keep), ignore: paths(ignore) }
    }

    #[test]
    fn ignored_fields_are_removed_at_any_depth() {
        let object = json!({
            "updated_at": 1, "title": "t", "user": { "name": "n", "updated_at": 2 },
            "items": [{ "id": 1, "updated_at": 3 }, "x"],
            "metadata": { "managedFields": [1], "annotations": { "a.b/c": 1, "d": 2 } }
        });
        let seen =
            filter(&[], &["updated_at", "*.updated_at", "metadata.managedFields", "metadata.annotations[\"a.b/c\"]"])
                .apply(object.clone());
        let expected = json!({ "title": "t", "user": { "name": "n" }, "items": [{ "id": 1 }, "x"],
            "metadata": { "annotations": { "d": 2 } } });
        assert_eq!(seen, expected);
        assert_eq!(
            filter(&[], &["**.updated_at"]).apply(json!({ "a": [{ "b": { "updated_at": 1 } }], "updated_at": 1 })),
            json!({ "a": [{ "b": {} }] })
        );
    }

    #[test]
    fn kept_fields_keep_their_records() {
        let issue = json!({ "title": "t", "state": "open", "labels": [{ "name": "a", "id": 1 }, { "name": "b" }],
            "user": { "login": "u", "id": 5 }, "body": null });
        assert_eq!(
            filter(&["title", "labels.name", "user.login", "body", "state.x"], &[]).apply(issue.clone()),
            json!({ "title": "t", "labels": [{ "name": "a" }, { "name": "b" }], "user": { "login": "u" }, "body": null })
        );
        assert_eq!(filter(&["**.id"], &[]).apply(issue), json!({ "labels": [{ "id": 1 }, {}], "user": { "id": 5 } }));
        assert_eq!(filter(&["*"], &["a"]).apply(json!({ "a": 1, "b": 2 })), json!({ "b": 2 }));
    }

    #[test]
    fn malformed_paths_are_refused() {
        for path in ["", ".", "a.", ".a", "a..b", "**", "a.**", "a[", "a[\"b", "a[\"b\"]c"] {
            assert_eq!(FieldPath::parse(path), None, "{path}");
        }
    }
}
