use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::*;
use countersign_config::{RoutesConfig, TrackerConfig, UpstreamConfig, UpstreamTarget};
use countersign_domain::{
    policy::{
        Globs, PinSource, Pins, PolicyConfig, PolicyDefault, Rule, Verdict,
        pins::{Definition, ToolPin},
    },
    principal::Role,
};
use countersign_store::ModuleStorage;
use countersign_tracker::Tracker;
use countersign_upstream::{Catalog, NegotiatedSession, Upstream, testing};

fn table(routes: &RoutesConfig) -> (RouteTable, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let config = TrackerConfig {
        enabled: true,
        workflow: std::collections::BTreeMap::new(),
        sample_project: false,
        people: Vec::new(),
    };
    let tracker =
        RouteTarget::Module(Tracker::open(&ModuleStorage::Directory(dir.path().to_owned()), &config).unwrap());
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

#[test]
fn find_tool_tries_exact_name_then_aliases() {
    let routes = RoutesConfig {
        prefixes: pairs(&[("pm_", "tracker"), ("x_", "nobody")]),
        // With another order, the first pattern would shadow an exact name and a prefix.
        patterns: pairs(&[("get_issue|pm_get_issue", "delete_issue"), ("jira_(.*)", "$1")]),
        ..RoutesConfig::default()
    };
    let (table, _dir) = table(&routes);
    let resolve = |name: &str| table.find_tool(name).map(|route| route.name.clone());
    for (name, to) in [
        ("get_issue", Some("get_issue")),
        ("tracker.get_issue", Some("get_issue")),
        ("pm_get_issue", Some("get_issue")),
        ("jira_list_issues", Some("list_issues")),
        ("my_jira_list_issues", None),
        ("jira_nothing", None),
        ("x_get_issue", None),
        ("gateway.get_issue", None),
        ("GET_ISSUE", None),
        ("", None),
    ] {
        assert_eq!(resolve(name).as_deref(), to, "{name}");
    }
}

#[test]
fn name_collision_error_names_both_providers() {
    let dir = tempfile::tempdir().unwrap();
    let config = TrackerConfig {
        enabled: true,
        workflow: std::collections::BTreeMap::new(),
        sample_project: false,
        people: Vec::new(),
    };
    let tracker =
        RouteTarget::Module(Tracker::open(&ModuleStorage::Directory(dir.path().to_owned()), &config).unwrap());
    let policy = Policy::new(&PolicyDefault::Allow.into());
    let twice = [tracker.clone(), tracker];
    let error = build_first(&twice, &policy, &Aliases::default()).err().unwrap();
    assert!(matches!(&error, RouteError::Collision { first, second, .. } if first == "tracker" && second == "tracker"));
}

#[test]
fn invalid_alias_pattern_is_reported() {
    let routes = RoutesConfig { patterns: pairs(&[("(", "x")]), ..RoutesConfig::default() };
    assert!(matches!(Aliases::new(&routes), Err(RouteError::Pattern { pattern, .. }) if pattern == "("));
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
    let text = r#"{ "z":[1.0,12345678901234567890123],"name":"t", "description":"\u00e9","inputSchema":{"type":"object","x":1E5} }"#;
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
    table.find_tool("fs__t5").unwrap().validator().unwrap();
    assert!(table.find_tool("fs__t7").unwrap().list_entry(LEGACY).contains("fs__t7"));
    let compiled = table.tools().iter().filter(|route| route.validator.get().is_some());
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
    assert!(table.find_tool("good").unwrap().validator().is_ok());
    let route = table.find_tool("bad").unwrap();
    let error = route.validator().unwrap_err();
    assert_eq!((error.kind, error.data["tool"].as_str()), (ErrorKind::ToolExecution, Some("bad")));
}

#[test]
fn unbounded_schema_is_not_compiled() {
    let twice = r##"{"properties":{"a":{"$ref":"#"}}}"##;
    let hostile = format!(r#"{{"name":"t","inputSchema":{{"type":"object","allOf":[{twice},{twice}]}}}}"#);
    let upstream = UpstreamFixture::new("fs", "", LEGACY, tools(&[&hostile]));
    assert!(TableFixture::new(&[&upstream]).table().find_tool("t").unwrap().validator().unwrap().is_none());
}

#[test]
fn schema_dialect_is_honoured() {
    let schema = r#"{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"items":[{"type":"string"}]}}}"#;
    let upstream =
        UpstreamFixture::new("fs", "", LEGACY, tools(&[&format!(r#"{{"name":"t","inputSchema":{schema}}}"#)]));
    let table = TableFixture::new(&[&upstream]).table();
    let route = table.find_tool("t").unwrap();
    let input = route.validator().unwrap().unwrap();
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
fn later_collision_keeps_name_with_current_holder() {
    let (a, b) = (
        UpstreamFixture::new("a", "", LEGACY, tools(&[])),
        UpstreamFixture::new("b", "", LEGACY, tools(&[&tool("t")])),
    );
    let fixture = TableFixture::new(&[&a, &b]);
    let before = fixture.table();
    assert_eq!(serving_tool(&before, "t"), routed_tool("b", "t"));
    testing::replace_catalog(&a.0, tools(&[&tool("t"), &tool("u")]));
    let error = fixture.build(true).err().unwrap();
    assert_eq!(error.to_string(), r#"both a and b offer a tool named "t""#);
    // `a` comes first in the configuration, but the name must not change its meaning for clients.
    let later = TableFixture { previous: Some(&before), ..fixture }.build(false).unwrap();
    assert_eq!(serving_tool(&later, "t"), routed_tool("b", "t"));
    assert_eq!(serving_tool(&later, "u"), routed_tool("a", "u"));
    assert_eq!(later.tools().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["u", "t"]);
    assert!(later.warnings("a")[0].contains("b offers a tool named \"t\" too"), "{:?}", later.warnings("a"));
    assert!(later.warnings("b").is_empty());
}

#[test]
fn prompt_and_resource_collisions_are_detected() {
    let prompt = || Catalog { prompts: raws(&[r#"{"name":"p"}"#.to_owned()]), ..Catalog::default() };
    let resource = || Catalog { resources: raws(&[r#"{"uri":"a:b","name":"r"}"#.to_owned()]), ..Catalog::default() };
    let template =
        || Catalog { templates: raws(&[r#"{"uriTemplate":"a:{b}","name":"r"}"#.to_owned()]), ..Catalog::default() };
    for (catalog, what) in [
        (&prompt as &dyn Fn() -> Catalog, "a prompt named \"p\""),
        (&resource, "a resource named \"a:b\""),
        (&template, "a resource template named \"a:{b}\""),
    ] {
        let (a, b) =
            (UpstreamFixture::new("a", "", LEGACY, catalog()), UpstreamFixture::new("b", "", LEGACY, catalog()));
        let error = TableFixture::new(&[&a, &b]).build(true).err().unwrap();
        assert_eq!(error.to_string(), format!("both a and b offer {what}"));
        let table = TableFixture::new(&[&a, &b]).build(false).unwrap();
        assert_eq!(table.warnings("b").len(), 1);
        assert_eq!(table.prompts().len() + table.resources().len() + table.templates().len(), 1);
    }
    let (a, b) = (
        UpstreamFixture::new("my server", "a", LEGACY, tools(&[])),
        UpstreamFixture::new("My_Server", "b", LEGACY, tools(&[])),
    );
    let error = TableFixture::new(&[&a, &b]).build(true).err().unwrap();
    assert_eq!(error.to_string(), r#"both my server and My_Server offer resources named "my-server+""#);
}

#[test]
fn priority_fails_over_to_next_reached_provider() {
    let both = || tools(&[&tool("t")]);
    let (a, b) = (UpstreamFixture::new("a", "", LEGACY, both()), UpstreamFixture::new("b", "", LEGACY, both()));
    let mut fixture = TableFixture::new(&[&a, &b]);
    fixture.aliases.priority = vec!["b".into(), "a".into()];
    let table = fixture.table();
    assert_eq!(serving_tool(&table, "t"), routed_tool("b", "t"));
    assert_eq!(
        serving_tool(&table, "a.t"),
        routed_tool("a", "t"),
        "each tool can still be called by the name of its provider"
    );
    assert_eq!(table.tools().len(), 1);
    testing::mark_never_reached(&b.0);
    assert_eq!(serving_tool(&table, "t"), routed_tool("a", "t"));
    assert_eq!(serving_tool(&table, "b.t"), routed_tool("b", "t"));
    // A conflict with an unranked provider is still an error.
    fixture.aliases.priority = vec!["b".into(), "c".into()];
    assert!(fixture.build(true).is_err());
}

#[test]
fn reserved_prefix_of_other_server_is_refused() {
    let names = ["good__query", "good.query", "good__deep__x", "tracker__x", "gateway.y", "good_query", "own"];
    let good = UpstreamFixture::new("good", "good__", LEGACY, tools(&[]));
    let deep = UpstreamFixture::new("deep", "good__deep__", LEGACY, tools(&[&tool("y")]));
    let definitions: Vec<String> = names.iter().map(|name| tool(name)).collect();
    let evil = UpstreamFixture::new("evil", "", LEGACY, Catalog { tools: raws(&definitions), ..Catalog::default() });
    let mut fixture = TableFixture::new(&[&evil, &good, &deep]);
    let table = fixture.table();
    let listed: Vec<_> = table.tools().iter().map(|route| route.name.as_str()).collect();
    assert_eq!(listed, ["good_query", "own", "good__deep__y"]);
    let warnings = table.warnings("evil");
    assert_eq!(warnings.len(), 5, "{warnings:?}");
    assert!(warnings[2].contains(r#"begin with "good__deep__" are those of deep"#), "{warnings:?}");
    // Ranked providers share names.
    fixture.aliases.priority = vec!["good".into(), "evil".into()];
    assert_eq!(serving_tool(&fixture.table(), "good__query"), routed_tool("evil", "good__query"));
    // A server's own name may begin with another's prefix only if its own prefix is longer.
    let clash = UpstreamFixture::new("a", "a_", LEGACY, tools(&[&tool("b_x"), &tool("c")]));
    let table = TableFixture::new(&[&clash, &UpstreamFixture::new("b", "a_b_", LEGACY, tools(&[]))]).table();
    assert_eq!(table.tools().iter().map(|route| route.name.as_str()).collect::<Vec<_>>(), ["a_c"]);
}

#[test]
fn name_with_prefix_of_unreached_server_is_awaited() {
    use super::unreached_upstreams::NameKind;
    let good = UpstreamFixture::new("good", "good__", LEGACY, tools(&[]));
    let plain = UpstreamFixture::new("plain", "", LEGACY, tools(&[&tool("own")]));
    testing::mark_lists_read(&plain.0);
    let mut fixture = TableFixture::new(&[&plain, &good]);
    fixture.aliases.prefixes = vec![("g-".into(), "good".into())];
    let table = fixture.table();
    let unreached_upstream =
        |name: &str, kind| table.unreached_upstream(name, kind).map(|expected| expected.upstream.config.name.clone());
    for (name, tool, prompt) in [
        ("good__query", Some("good"), Some("good")),
        ("good.query", Some("good"), None),
        ("g-query", Some("good"), None),
        ("query", None, None),
        ("goods__query", None, None),
    ] {
        assert_eq!(unreached_upstream(name, NameKind::Tool).as_deref(), tool, "{name}");
        assert_eq!(unreached_upstream(name, NameKind::Prompt).as_deref(), prompt, "{name}");
    }
    assert_eq!(
        table.unreached_upstream_of_uri("GOOD+x:y").map(|expected| expected.upstream.config.name.clone()).as_deref(),
        Some("good")
    );
}

#[test]
fn any_name_may_belong_to_unreached_unprefixed_server() {
    use super::unreached_upstreams::NameKind;
    let good = UpstreamFixture::new("good", "good__", LEGACY, tools(&[&tool("query")]));
    testing::mark_lists_read(&good.0);
    let offers = Catalog { resources: raws(&[r#"{"uri":"a:listed","name":"r"}"#.to_owned()]), ..Catalog::default() };
    let other = UpstreamFixture::new("other", "", LEGACY, offers);
    testing::mark_lists_read(&other.0);
    let plain = UpstreamFixture::new("plain", "", LEGACY, Catalog::default());
    testing::mark_never_reached(&plain.0);
    let mut fixture = TableFixture::new(&[&good, &other, &plain]);
    let named = |expected: Option<super::unreached_upstreams::AwaitedUpstream>| {
        expected.map(|expected| (expected.upstream.config.name.clone(), expected.is_certain))
    };
    let expected = |is_certain: bool| Some(("plain".to_owned(), is_certain));
    let table = fixture.table();
    assert_eq!(named(table.unreached_upstream("query", NameKind::Tool)), expected(false));
    assert_eq!(named(table.unreached_upstream("query", NameKind::Prompt)), expected(false));
    // The only server that could own the name has been reached.
    assert_eq!(named(table.unreached_upstream("good__other", NameKind::Tool)), None);
    assert_eq!(named(table.unreached_upstream_of_uri("b:anything")), expected(false));
    assert_eq!(named(table.unreached_upstream_of_uri("a:listed")), None);
    assert_eq!(named(table.unreached_upstream_of_uri("good+a:anything")), None);
    // The store has pins of the server: it has this tool, but not the other one.
    fixture.pin("plain", &["query"]);
    let table = fixture.table();
    assert_eq!(named(table.unreached_upstream("query", NameKind::Tool)), expected(true));
    assert_eq!(named(table.unreached_upstream("quarry", NameKind::Tool)), None);
    assert_eq!(named(table.unreached_upstream("quarry", NameKind::Prompt)), expected(false));
    testing::mark_lists_read(&plain.0);
    assert_eq!(named(fixture.table().unreached_upstream("query", NameKind::Tool)), None);
}

#[test]
fn unpinned_name_of_unreached_server_is_not_awaited() {
    use super::unreached_upstreams::NameKind;
    let good = UpstreamFixture::new("good", "good__", LEGACY, Catalog::default());
    testing::mark_never_reached(&good.0);
    let mut fixture = TableFixture::new(&[&good]);
    fixture.aliases = Aliases::new(&RoutesConfig {
        prefixes: vec![("good__old-".to_owned(), "good".to_owned())],
        categories: vec![],
        patterns: vec![("good__was_(.*)".to_owned(), "good__$1".to_owned())],
        priority: vec![],
        fallback: None,
    })
    .unwrap();
    let spellings = ["good__query", "good.query", "good.good__query", "good__old-query", "good__was_query"];
    let unknown = ["good__quarry", "good.quarry", "good.good__quarry", "good__query.", "good."];
    let table = fixture.table();
    for name in spellings.iter().chain(&unknown) {
        assert!(table.unreached_upstream(name, NameKind::Tool).is_some(), "{name}: nothing is known yet");
    }
    fixture.pin("good", &["good__query"]);
    let table = fixture.table();
    for name in spellings {
        assert!(table.unreached_upstream(name, NameKind::Tool).is_some_and(|expected| expected.is_certain), "{name}");
    }
    for name in unknown {
        assert!(table.unreached_upstream(name, NameKind::Tool).is_none(), "{name}");
    }
    assert!(table.unreached_upstream("good__quarry", NameKind::Prompt).is_some(), "prompts are not recorded");
}

#[test]
fn aliases_resolve_to_own_names_of_prefixed_server() {
    let fs = UpstreamFixture::new("fs", "fs__", LEGACY, tools(&[&tool("read"), &tool("do_write")]));
    let web = UpstreamFixture::new("web", "w_", LEGACY, tools(&[&tool("read"), &tool("get")]));
    let mut fixture = TableFixture::new(&[&fs, &web]);
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    fixture.aliases = Aliases::new(&RoutesConfig {
        prefixes: pairs(&[("f-", "fs")]),
        categories: pairs(&[("file.*", "fs"), ("file.change.*", "fs/do_*"), ("fetch", "web/get")]),
        patterns: pairs(&[("old_(.*)", "fs__$1")]),
        priority: vec![],
        fallback: Some("web".into()),
    })
    .unwrap();
    let table = fixture.table();
    for (name, to) in [
        ("fs__read", routed_tool("fs", "fs__read")),
        ("fs.read", routed_tool("fs", "fs__read")),
        ("fs.fs__read", routed_tool("fs", "fs__read")),
        ("web.do_write", None),
        ("f-read", routed_tool("fs", "fs__read")),
        ("file.read", routed_tool("fs", "fs__read")),
        ("file.change.write", routed_tool("fs", "fs__do_write")),
        ("file.nothing", None),
        ("fetch", routed_tool("web", "w_get")),
        ("old_read", routed_tool("fs", "fs__read")),
        // Names that no alias resolves are looked up at the fallback.
        ("read", routed_tool("web", "w_read")),
        ("do_write", None),
    ] {
        assert_eq!(serving_tool(&table, name), to, "{name}");
        assert_eq!(serving_tool(&table, name), to, "{name} again");
    }
    assert_eq!(table.alias_cache.read().len(), 8, "only resolved aliases are cached");
}

#[test]
fn uri_resolves_by_scheme_owner_then_by_lists() {
    let resources = |uris: &[&str], templates: &[&str]| Catalog {
        resources: raws(&uris.iter().map(|uri| format!(r#"{{"uri":"{uri}","name":"r"}}"#)).collect::<Vec<_>>()),
        templates: raws(
            &templates.iter().map(|uri| format!(r#"{{"uriTemplate":"{uri}","name":"r"}}"#)).collect::<Vec<_>>(),
        ),
        ..Catalog::default()
    };
    let fs = UpstreamFixture::new("fs", "fs__", LEGACY, resources(&["file:///a"], &[]));
    let a = UpstreamFixture::new("a", "", LEGACY, resources(&["demo://one", "file:///x"], &["demo://{id}/a"]));
    let b = UpstreamFixture::new("b", "", LEGACY, resources(&["demo://two"], &["{+all}/greedy", "test://{id}"]));
    let provider_of = |table: &RouteTable, uri: &str| table.provider_for_uri(uri).map(|p| p.name().to_owned());
    let table = TableFixture::new(&[&fs, &a, &b]).table();
    for (uri, to) in [
        ("fs+file:///a", Some("fs")),
        ("FS+file:///never/listed", Some("fs")),
        // A greedy template does not match URIs that another server owns.
        ("fs+file:///greedy", Some("fs")),
        ("demo://one", Some("a")),
        ("demo://two", Some("b")),
        ("demo://7/a", Some("a")),
        ("demo://{id}/a", Some("a")),
        ("other:///greedy", Some("b")),
        ("test://1", Some("b")),
        // Matched by the scheme of listed URIs.
        ("demo://three", Some("a")),
        ("file:///y", Some("a")),
        ("nobody://x", None),
        ("no uri", None),
    ] {
        assert_eq!(provider_of(&table, uri).as_deref(), to, "{uri}");
    }
    // The only upstream with resources serves all URIs without an owner.
    let table = TableFixture::new(&[&fs, &a]).table();
    assert_eq!(provider_of(&table, "nobody://x").as_deref(), Some("a"));
    // A URI with another server's scheme cannot be offered.
    let thief = UpstreamFixture::new("thief", "", LEGACY, resources(&["fs+file:///b", "own:x"], &[]));
    let table = TableFixture::new(&[&fs, &thief]).table();
    let warning = r#"a resource "fs+file:///b" is left out: such URIs are those of fs"#;
    assert_eq!(table.warnings("thief"), [warning]);
    assert_eq!(provider_of(&table, "fs+file:///b").as_deref(), Some("fs"));
    assert_eq!(table.resources().len(), 2);
}

#[test]
fn list_version_changes_only_with_its_list() {
    let a = UpstreamFixture::new("a", "", LEGACY, tools(&[&tool("t")]));
    let fixture = TableFixture::new(&[&a]);
    let first = fixture.table();
    let next = |previous: &RouteTable| {
        TableFixture { previous: Some(previous), ..TableFixture::new(&[&a]) }.build(false).unwrap()
    };
    let second = next(&first);
    assert_eq!((second.generation, second.versions), (first.generation + 1, first.versions));
    testing::replace_catalog(
        &a.0,
        Catalog { resources: raws(&[r#"{"uri":"a:b","name":"r"}"#.to_owned()]), ..tools(&[&tool("t")]) },
    );
    let third = next(&second);
    assert_eq!(third.versions, ListVersions { resources: third.generation, ..first.versions });
    testing::replace_catalog(
        &a.0,
        Catalog { resources: raws(&[r#"{"uri":"a:b","name":"r"}"#.to_owned()]), ..tools(&[&tool("u")]) },
    );
    let fourth = next(&third);
    assert_eq!(fourth.versions, ListVersions { tools: fourth.generation, ..third.versions });
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

#[test]
fn schema_with_nonlinear_pattern_is_unchecked() {
    let def = |pattern: &str| {
        let def = countersign_provider::testing::tool("t", &json!({ "a": { "items": { "pattern": pattern } } }));
        ToolDef { raw: Some(Arc::from(RawValue::from_string("{}".to_owned()).unwrap())), ..def }
    };
    assert!(compile_schema(&def("^(a+)+$")).unwrap().is_some());
    // Matching these patterns needs backtracking for each item.
    for pattern in ["^((?=a)a|a)*$", "^(a|a)*\\1$"] {
        assert!(compile_schema(&def(pattern)).unwrap().is_none(), "{pattern}");
    }
    assert!(compile_schema(&def("(")).is_err(), "an invalid pattern is an error");
}
