//! Tests of the lists of a table.

mod names;

use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::*;
use countersign_config::{RoutesConfig, TrackerConfig, UpstreamConfig, UpstreamTarget};
use countersign_domain::{
    policy::{
        Condition, Globs, PinSource, Pins, PolicyConfig, PolicyDefault, Rule, Verdict,
        pins::{Acceptance, AcceptedReads, Definition, ToolPin},
    },
    principal::Role,
    recipes::{Dispatcher, Recipe, Recipes},
};
use countersign_store::ModuleStorage;
use countersign_tracker::Tracker;
use countersign_upstream::{Catalog, NegotiatedSession, Upstream, testing};

/// Opens the tracker in a new folder.
fn open_tracker() -> (RouteTarget, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let config = TrackerConfig {
        enabled: true,
        workflow: std::collections::BTreeMap::new(),
        sample_project: false,
        people: Vec::new(),
    };
    let tracker = Tracker::open(&ModuleStorage::Directory(dir.path().to_owned()), &config).unwrap();
    (RouteTarget::Module(tracker), dir)
}

fn table(routes: &RoutesConfig) -> (RouteTable, tempfile::TempDir) {
    let (tracker, dir) = open_tracker();
    let policy = Policy::new(&PolicyDefault::ReviewWrites.into());
    let aliases = Aliases::new(routes).unwrap();
    (build_first(&[tracker], &policy, &aliases).unwrap(), dir)
}

/// Builds the first table.
fn build_first(providers: &[RouteTarget], policy: &Policy, aliases: &Aliases) -> Result<RouteTable, RouteError> {
    let pending_schema = &Arc::new(serde_json::json!({}));
    RouteTable::build(&TableInputs { providers, policy, aliases, pending_schema, previous: None, strict: true })
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

fn raws(texts: &[String]) -> Vec<Arc<RawValue>> {
    texts.iter().map(|text| RawValue::from_string(text.clone()).unwrap().into()).collect()
}

fn tools(texts: &[&str]) -> Catalog {
    let texts: Vec<_> = texts.iter().map(|text| (*text).to_owned()).collect();
    Catalog { tools: raws(&texts), ..Catalog::default() }
}

fn tool(name: &str) -> String {
    format!(r#"{{"name":"{name}","inputSchema":{{"type":"object"}},"annotations":{{"readOnlyHint":true}}}}"#)
}

/// An upstream that was never connected, with a catalog.
struct UpstreamFixture(Arc<Upstream>);

impl UpstreamFixture {
    fn new(name: &str, prefix: &str, revision: Revision, catalog: Catalog) -> Self {
        let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: BTreeMap::default(), cwd: None };
        let config = UpstreamConfig { prefix: prefix.to_owned(), ..UpstreamConfig::new(name, target) };
        let capabilities = r#"{"tools":{},"resources":{"subscribe":true}}"#.to_owned();
        let capabilities = RawValue::from_string(capabilities).unwrap().into();
        let negotiated = NegotiatedSession { capabilities, ..testing::negotiated(revision) };
        Self(testing::disconnected_upstream(config, negotiated, catalog))
    }

    fn provider(&self) -> RouteTarget {
        RouteTarget::Upstream(self.0.clone())
    }
}

struct TableFixture<'a> {
    providers: Vec<RouteTarget>,
    aliases: Aliases,
    previous: Option<&'a RouteTable>,
    pins: Arc<Pins>,
}

/// A source with fixed pins.
struct FixedPins(Arc<Pins>);

impl PinSource for FixedPins {
    fn pins(&self) -> Arc<Pins> {
        Arc::clone(&self.0)
    }

    fn observe(&self, _: &str, _: &[Definition]) {}
}

impl<'a> TableFixture<'a> {
    fn new(upstreams: &[&UpstreamFixture]) -> Self {
        let providers = upstreams.iter().map(|upstream| upstream.provider()).collect();
        Self { providers, aliases: Aliases::default(), previous: None, pins: Arc::default() }
    }

    /// Pins these tools of the server.
    fn pin(&mut self, server: &str, tools: &[&str]) {
        let tools = tools.iter().map(|tool| ((*tool).to_owned(), ToolPin::default())).collect();
        self.pins = Arc::new(Pins { servers: [(server.to_owned(), tools)].into() });
    }

    fn build(&self, strict: bool) -> Result<RouteTable, RouteError> {
        RouteTable::build(&TableInputs {
            providers: &self.providers,
            policy: &Policy::new(&PolicyDefault::Allow.into()).with_pins(Arc::new(FixedPins(self.pins.clone()))),
            aliases: &self.aliases,
            pending_schema: &Arc::new(serde_json::json!({})),
            previous: self.previous,
            strict,
        })
    }

    fn table(&self) -> RouteTable {
        self.build(true).unwrap()
    }
}

fn serving_tool(table: &RouteTable, name: &str) -> Option<(String, String)> {
    table.find_tool(name).map(|route| (route.provider.name().to_owned(), route.name.clone()))
}

fn routed_tool(provider: &str, name: &str) -> Option<(String, String)> {
    Some((provider.to_owned(), name.to_owned()))
}

const MODERN: Revision = Revision::V2026_07_28;
const LEGACY: Revision = Revision::V2025_11_25;

#[test]
fn list_entries_preserve_upstream_bytes() {
    let text = r#"{ "z":[1.0,98765432109876543210123],"name":"t", "description":"\u00e9","inputSchema":{"type":"object","x":1E5} }"#;
    let prompt = r#"{"x-y":0.10,"name":"p","arguments":[{"name":"a","z":1e1}]}"#;
    let resource = r#"{"uri":"file:///a","v":-0.0,"name":"r"}"#;
    let template = r#"{"name":"r","uriTemplate":"file:///{a}","v":1e-7}"#;
    let catalog = Catalog {
        tools: raws(&[text.to_owned()]),
        prompts: raws(&[prompt.to_owned()]),
        resources: raws(&[resource.to_owned()]),
        templates: raws(&[template.to_owned()]),
        ..Catalog::default()
    };
    for (prefix, scheme) in [("", ""), ("fs__", "fs+")] {
        let upstream = UpstreamFixture::new("fs", prefix, LEGACY, catalog.clone());
        let table = TableFixture::new(&[&upstream]).table();
        for revision in Revision::ALL {
            let named = |text: &str, name: &str| text.replace(&format!("\"{name}\""), &format!("\"{prefix}{name}\""));
            assert_eq!(table.tools()[0].list_entry(revision), named(text, "t"));
            assert_eq!(table.prompts()[0].list_entry(revision), named(prompt, "p"));
            assert_eq!(table.resources()[0].list_entry(revision), resource.replace("file:", &format!("{scheme}file:")));
            assert_eq!(table.templates()[0].list_entry(revision), template.replace("file:", &format!("{scheme}file:")));
        }
    }
}

#[test]
fn large_table_compiles_and_renders_tools_lazily() {
    let all: Vec<_> = (0..10_000).map(|n| tool(&format!("t{n}"))).collect();
    let catalog = Catalog { tools: raws(&all), ..Catalog::default() };
    let upstream = UpstreamFixture::new("fs", "fs__", LEGACY, catalog);
    let table = TableFixture::new(&[&upstream]).table();
    assert_eq!(table.tools().len(), 10_000);
    assert_eq!(serving_tool(&table, "fs__t9999"), routed_tool("fs", "fs__t9999"));
    assert_eq!(serving_tool(&table, "fs__t10000"), None);
    table.find_tool("fs__t5").unwrap().compiled_schema().unwrap();
    assert!(table.find_tool("fs__t7").unwrap().list_entry(LEGACY).contains("fs__t7"));
    let compiled = table.tools().iter().filter(|route| route.compiled_schema.get().is_some());
    assert_eq!(compiled.map(|route| route.name.as_str()).collect::<Vec<_>>(), ["fs__t5"]);
    let written = table.tools().iter().filter(|route| route.rendered.is_rendered(LEGACY));
    assert_eq!(written.map(|route| route.name.as_str()).collect::<Vec<_>>(), ["fs__t7"]);
    assert!(table.tools().iter().zip(0..).all(|(route, n)| route.name == format!("fs__t{n}")), "in their order");
}

#[test]
fn invalid_schema_only_fails_calls_of_its_tool() {
    let bad = r#"{"name":"bad","inputSchema":{"type":"object","properties":{"a":{"type":"nothing"}}}}"#;
    let upstream = UpstreamFixture::new("fs", "", LEGACY, tools(&[bad, &tool("good")]));
    let table = TableFixture::new(&[&upstream]).table();
    assert_eq!(table.tools().len(), 2);
    assert!(table.find_tool("good").unwrap().compiled_schema().is_ok());
    let route = table.find_tool("bad").unwrap();
    let error = route.compiled_schema().unwrap_err();
    assert_eq!((error.kind, error.data["tool"].as_str()), (ErrorKind::ToolExecution, Some("bad")));
}

#[test]
fn unbounded_schema_is_not_compiled() {
    let twice = r##"{"properties":{"a":{"$ref":"#"}}}"##;
    let hostile = format!(r#"{{"name":"t","inputSchema":{{"type":"object","allOf":[{twice},{twice}]}}}}"#);
    let upstream = UpstreamFixture::new("fs", "", LEGACY, tools(&[&hostile]));
    assert!(TableFixture::new(&[&upstream]).table().find_tool("t").unwrap().compiled_schema().unwrap().is_none());
}

#[test]
fn schema_dialect_is_honoured() {
    let schema = r#"{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"items":[{"type":"string"}]}}}"#;
    let upstream =
        UpstreamFixture::new("fs", "", LEGACY, tools(&[&format!(r#"{{"name":"t","inputSchema":{schema}}}"#)]));
    let table = TableFixture::new(&[&upstream]).table();
    let route = table.find_tool("t").unwrap();
    let input = route.compiled_schema().unwrap().unwrap();
    assert!(input.is_valid(&serde_json::json!({ "a": ["x", 1] })));
    assert!(!input.is_valid(&serde_json::json!({ "a": [1] })));
}

#[test]
fn tool_with_invalid_headers_is_hidden_for_modern_server() {
    let invalid_headers =
        r#"{"name":"headed","inputSchema":{"type":"object","properties":{"a":{"type":"object","x-mcp-header":"A"}}}}"#;
    for (revision, is_offered) in [(MODERN, false), (LEGACY, true)] {
        let upstream = UpstreamFixture::new("fs", "", revision, tools(&[invalid_headers, &tool("good")]));
        let table = TableFixture::new(&[&upstream]).table();
        assert_eq!(table.find_tool("headed").is_some(), is_offered);
        assert_eq!(table.tools().len(), 1 + usize::from(is_offered));
        assert_eq!(table.warnings("fs").iter().any(|w| w.contains("headed") && w.contains("left out")), !is_offered);
        assert!(table.find_tool("headed").is_none_or(|route| route.param_headers.is_empty()));
    }
}

#[test]
fn names_rejected_by_clients_are_kept_with_warning() {
    let upstream =
        UpstreamFixture::new("fs", "fs__", LEGACY, tools(&[&tool("a b"), &tool(&"x".repeat(64)), &tool("fine")]));
    let table = TableFixture::new(&[&upstream]).table();
    assert_eq!(table.tools().len(), 3);
    assert_eq!(table.warnings("fs").len(), 2, "{:?}", table.warnings("fs"));
}

#[test]
fn warnings_per_provider_are_bounded() {
    let definitions: Vec<_> = (0..500).map(|n| tool(&format!("a b{n}"))).collect();
    let upstream = UpstreamFixture::new("fs", "", LEGACY, Catalog { tools: raws(&definitions), ..Catalog::default() });
    let warnings = TableFixture::new(&[&upstream]).table().warnings("fs");
    assert_eq!(warnings.len(), 51);
    assert_eq!(warnings[50], "and 450 more");
}

#[test]
fn list_fingerprint_changes_only_with_its_list() {
    let a = UpstreamFixture::new("a", "", LEGACY, tools(&[&tool("t")]));
    let fixture = TableFixture::new(&[&a]);
    let first = fixture.table();
    let next = |previous: &RouteTable| {
        TableFixture { previous: Some(previous), ..TableFixture::new(&[&a]) }.build(false).unwrap()
    };
    let second = next(&first);
    assert_eq!(second.generation, first.generation + 1);
    assert_eq!(second.fingerprints, first.fingerprints);
    testing::replace_catalog(
        &a.0,
        Catalog { resources: raws(&[r#"{"uri":"a:b","name":"r"}"#.to_owned()]), ..tools(&[&tool("t")]) },
    );
    let third = next(&second);
    let resources = third.fingerprints.resources;
    assert_ne!(resources, first.fingerprints.resources);
    assert_eq!(third.fingerprints, ListFingerprints { resources, ..first.fingerprints });
    testing::replace_catalog(
        &a.0,
        Catalog { resources: raws(&[r#"{"uri":"a:b","name":"r"}"#.to_owned()]), ..tools(&[&tool("u")]) },
    );
    let fourth = next(&third);
    let tools = fourth.fingerprints.tools;
    assert_ne!(tools, third.fingerprints.tools);
    assert_eq!(fourth.fingerprints, ListFingerprints { tools, ..third.fingerprints });
}

#[test]
fn instructions_are_limited_to_visible_servers() {
    let upstream_saying = |name: &str, says: &str, catalog: Catalog, instructions: bool| {
        let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: BTreeMap::default(), cwd: None };
        let config = UpstreamConfig { instructions, ..UpstreamConfig::new(name, target) };
        let negotiated =
            NegotiatedSession { instructions: Some(says.to_owned()), ..testing::negotiated(Revision::V2025_11_25) };
        UpstreamFixture(testing::disconnected_upstream(config, negotiated, catalog)).provider()
    };
    let deny = |server: &str, roles: Vec<Role>| Rule {
        servers: Globs::new(vec![server.to_owned()]).unwrap(),
        roles,
        ..Rule::new(server, Verdict::Deny)
    };
    let rules = vec![deny("secret", vec![Role::Agent]), deny("off", Vec::new())];
    let policy = Policy::new(&PolicyConfig { rules, ..PolicyDefault::ReviewWrites.into() });
    let build = |providers: &[RouteTarget]| build_first(providers, &policy, &Aliases::default()).unwrap();
    let some = || tools(&[&tool("a")]);
    let table = build(&[
        upstream_saying("one", "Ask first.\nThen act.", some(), true),
        upstream_saying("dropped", "never", some(), false),
        upstream_saying("secret", "hush", some(), true),
        upstream_saying("off", "denied", some(), true),
        upstream_saying("empty", "nothing to offer", Catalog::default(), true),
    ]);
    let principal = |role| Principal { role, ..Principal::local_agent() };
    let one = "\n\nThe server `one` says of itself:\n  Ask first.\n  Then act.";
    let secret = "\n\nThe server `secret` says of itself:\n  hush";
    assert_eq!(&*table.instructions_for(&principal(Role::Agent)), one);
    assert_eq!(&*table.instructions_for(&principal(Role::Reviewer)), format!("{one}{secret}"));

    let many: Vec<_> = (0..20).map(|n| upstream_saying(&format!("s{n}"), &"x".repeat(9000), some(), true)).collect();
    let text = build(&many).instructions_for(&principal(Role::Agent)).to_string();
    assert!(
        text.len() <= super::server_instructions::MAX_TOTAL_BYTES
            && text.contains("`s6`")
            && text.ends_with("left out.")
    );
    assert!(!text.contains("`s7`"), "{}", text.len());
}

/// A tool that carries the operations `Get` and `Post`, as its recipe says.
fn dispatching_upstream() -> UpstreamFixture {
    let argument = Condition::compile_for("arguments.op", &[("arguments", &[])]).unwrap();
    let operations = ["Get", "Post"].map(|name| (name.to_owned(), Recipe::default())).into();
    let recipe = Recipe { dispatcher: Some(Dispatcher { argument, operations }), ..Recipe::default() };
    let previews = Recipes { by_tool: Arc::new([("run".to_owned(), recipe)].into()), ..Recipes::default() };
    let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: BTreeMap::default(), cwd: None };
    let config = UpstreamConfig { previews, prefix: "s__".into(), ..UpstreamConfig::new("s", target) };
    let catalog = tools(&[r#"{"name":"run","inputSchema":{"type":"object"}}"#]);
    UpstreamFixture(testing::disconnected_upstream(config, testing::negotiated(MODERN), catalog))
}

#[test]
fn operations_have_their_own_rulings() {
    let upstream = dispatching_upstream();
    let arguments = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
    let rule =
        |tools: &str, then| Rule { tools: Globs::new(vec![tools.to_owned()]).unwrap(), ..Rule::new(tools, then) };
    let decide = |policy: &Policy, text: &str| {
        let table = build_first(&[upstream.provider()], policy, &Aliases::default()).unwrap();
        let route = table.find_tool("s__run").unwrap();
        let principal = Principal::local_agent();
        let requester = Requester { principal: &principal, transport: "", revision: "", client: None };
        assert!(route.is_visible_to(&principal) && route.may_review());
        let verdict = route.ruling_for(&arguments(text)).decide(&requester, &arguments(text)).verdict;
        (verdict, route.qualified_name(&arguments(text)).into_owned())
    };
    let of = |verdict, subject: &str| (verdict, subject.to_owned());
    let allow = Policy::new(&PolicyDefault::Allow.into());
    assert_eq!(decide(&allow, r#"{"op":"Get"}"#), of(Verdict::Allow, "s__run/Get"));
    assert_eq!(decide(&allow, r#"{"op":"Delete"}"#), of(Verdict::Review, "s__run/Delete"));
    assert_eq!(decide(&allow, r#"{"op":"Get","OP":"Delete"}"#), of(Verdict::Review, "s__run/"));
    let rules = vec![rule("s__run/Get", Verdict::Allow), rule("s__run/D*", Verdict::Deny)];
    let rules = Policy::new(&PolicyConfig { rules, ..PolicyDefault::ReviewWrites.into() });
    assert_eq!(decide(&rules, r#"{"op":"Get"}"#).0, Verdict::Allow);
    assert_eq!(decide(&rules, r#"{"op":"Post"}"#).0, Verdict::Review);
    assert_eq!(decide(&rules, r#"{"op":"Delete"}"#).0, Verdict::Deny);
    let values = vec!["1"; 20_000].join(",");
    for unreadable in [
        r#"{"op":"Delete","OP":"Get"}"#,
        r#"{"op":"Delete","op":"Get"}"#,
        r#"{"op":"Delete","n":98765432109876543210}"#,
        r#"{"op":["Delete"]}"#,
        r#"{"op":{"a":"Delete"}}"#,
        "{}",
        &format!(r#"{{"op":"Delete","padding":"{}"}}"#, "x".repeat(1 << 20)),
        &format!(r#"{{"op":"Delete","padding":[{values}]}}"#),
    ] {
        assert_eq!(decide(&rules, unreadable).0, Verdict::Deny, "{}", unreadable.get(..40).unwrap_or(unreadable));
    }
    let rules = PolicyConfig { rules: vec![rule("s__run/Post", Verdict::Deny)], ..PolicyDefault::Allow.into() };
    for similar in ["post", " Post", "POST\\n", "\\u0000post\\u200b"] {
        let decision = decide(&Policy::new(&rules), &format!(r#"{{"op":"{similar}"}}"#));
        assert_eq!(decision.0, Verdict::Deny, "{similar}");
    }
    assert_eq!(decide(&Policy::new(&rules), r#"{"op":"get"}"#), of(Verdict::Review, "s__run/get"));
    let closed = PolicyConfig { rules: vec![rule("s__run/Get", Verdict::Review)], ..PolicyDefault::Deny.into() };
    assert_eq!(decide(&Policy::new(&closed), r#"{"op":"Get"}"#).0, Verdict::Review, "it is listed for one operation");
}

#[test]
fn single_operation_is_accepted_as_a_read() {
    let upstream = dispatching_upstream();
    let build = |pins: Pins| {
        let policy = Policy::new(&PolicyDefault::ReviewWrites.into()).with_pins(Arc::new(FixedPins(Arc::new(pins))));
        build_first(&[upstream.provider()], &policy, &Aliases::default()).unwrap()
    };
    let hash = build(Pins::default()).find_tool("s__run").unwrap().hash.clone();
    let accepted = Acceptance {
        hash: hash.clone(),
        by: "alice".into(),
        at: Default::default(),
        server_fingerprint: None,
        reads: AcceptedReads::All,
    };
    let read = ToolPin { accepted: Some(accepted), ..ToolPin::default() };
    let seen = ToolPin { seen: Some(hash), ..ToolPin::default() };
    let pins = |tool: ToolPin| {
        let tools = [("s__run".to_owned(), tool), ("s__run/Get".to_owned(), read.clone())].into();
        Pins { servers: [("s".to_owned(), tools)].into() }
    };
    let reads = |pins: Pins| {
        let table = build(pins);
        table.definitions("s").map(|route| (route.name.clone(), route.is_read_only())).collect::<Vec<_>>()
    };
    let expected =
        |get| [("s__run", false), ("s__run/Get", get), ("s__run/Post", false)].map(|(n, r)| (n.to_owned(), r));
    assert_eq!(reads(pins(seen)), expected(true));
    assert_eq!(reads(pins(ToolPin::default())), expected(false), "the tool is new");
}
