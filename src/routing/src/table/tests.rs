use std::collections::BTreeMap;

use serde_json::value::RawValue;

use super::*;
use countersign_config::{RoutesConfig, TrackerConfig, UpstreamConfig, UpstreamTarget};
use countersign_domain::{
    policy::{
        Globs, PinSource, Pins, PolicyConfig, PolicyDefault, Rule, Verdict,
        pins::{Definition, Pin},
    },
    principal::Role,
};
use countersign_store::Room;
use countersign_tracker::Tracker;
use countersign_upstream::{Catalog, Negotiated, Upstream, testing};

fn table(routes: &RoutesConfig) -> (RouteTable, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let config = TrackerConfig {
        enabled: true,
        workflow: std::collections::BTreeMap::new(),
        sample_project: false,
        people: Vec::new(),
    };
    let tracker = Target::Module(Tracker::open(&Room::Directory(dir.path().to_owned()), &config).unwrap());
    let policy = Policy::new(&PolicyDefault::ReviewWrites.into());
    let aliases = Aliases::new(routes).unwrap();
    (RouteTable::build(1, &[tracker], &policy, &aliases, &serde_json::json!({})).unwrap(), dir)
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect()
}

#[test]
fn exact_then_namespace_then_prefix_then_pattern_then_nowhere() {
    let routes = RoutesConfig {
        prefixes: pairs(&[("pm_", "tracker"), ("x_", "nobody")]),
        // The first would shadow an exact name and a prefix if the order were another.
        patterns: pairs(&[("get_issue|pm_get_issue", "delete_issue"), ("jira_(.*)", "$1")]),
        ..RoutesConfig::default()
    };
    let (table, _dir) = table(&routes);
    let leads = |name: &str| table.tool(name).map(|route| route.name.clone());
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
        assert_eq!(leads(name).as_deref(), to, "{name}");
    }
}

#[test]
fn two_providers_of_one_name_are_refused_and_both_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let config = TrackerConfig {
        enabled: true,
        workflow: std::collections::BTreeMap::new(),
        sample_project: false,
        people: Vec::new(),
    };
    let tracker = Target::Module(Tracker::open(&Room::Directory(dir.path().to_owned()), &config).unwrap());
    let policy = Policy::new(&PolicyDefault::Allow.into());
    let twice = [tracker.clone(), tracker];
    let error = RouteTable::build(1, &twice, &policy, &Aliases::default(), &serde_json::json!({})).err().unwrap();
    assert!(matches!(&error, RouteError::Collision { first, second, .. } if first == "tracker" && second == "tracker"));
}

#[test]
fn a_pattern_that_is_none_is_an_error_that_names_it() {
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

/// A provider around an upstream that was never connected.
struct Stocked(Arc<Upstream>);

impl Stocked {
    fn new(name: &str, prefix: &str, revision: Revision, catalog: Catalog) -> Self {
        let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: BTreeMap::default(), cwd: None };
        let config = UpstreamConfig { prefix: prefix.to_owned(), ..UpstreamConfig::new(name, target) };
        let capabilities = r#"{"tools":{},"resources":{"subscribe":true}}"#.to_owned();
        let capabilities = RawValue::from_string(capabilities).unwrap().into();
        let negotiated = Negotiated { capabilities, ..testing::negotiated(revision) };
        Self(testing::stocked(config, negotiated, catalog))
    }

    fn provider(&self) -> Target {
        Target::Upstream(self.0.clone())
    }
}

struct Router<'a> {
    providers: Vec<Target>,
    aliases: Aliases,
    previous: Option<&'a RouteTable>,
    pins: Arc<Pins>,
}

/// Pins that stay as they are.
struct Pinned(Arc<Pins>);

impl PinSource for Pinned {
    fn pins(&self) -> Arc<Pins> {
        Arc::clone(&self.0)
    }

    fn observe(&self, _: &str, _: &[Definition]) {}
}

impl<'a> Router<'a> {
    fn new(upstreams: &[&Stocked]) -> Self {
        let providers = upstreams.iter().map(|stocked| stocked.provider()).collect();
        Self { providers, aliases: Aliases::default(), previous: None, pins: Arc::default() }
    }

    /// The store knows the server by these tools.
    fn pin(&mut self, server: &str, tools: &[&str]) {
        let tools = tools.iter().map(|tool| ((*tool).to_owned(), Pin::default())).collect();
        self.pins = Arc::new(Pins { servers: [(server.to_owned(), tools)].into() });
    }

    fn build(&self, strict: bool) -> Result<RouteTable, RouteError> {
        RouteTable::of(&Build {
            providers: &self.providers,
            policy: &Policy::new(&PolicyDefault::Allow.into()).with_pins(Arc::new(Pinned(self.pins.clone()))),
            aliases: &self.aliases,
            pending: &Arc::new(serde_json::json!({})),
            previous: self.previous,
            strict,
        })
    }

    fn table(&self) -> RouteTable {
        self.build(true).unwrap()
    }
}

fn served(table: &RouteTable, name: &str) -> Option<(String, String)> {
    table.tool(name).map(|route| (route.provider.name().to_owned(), route.name.clone()))
}

fn is(provider: &str, name: &str) -> Option<(String, String)> {
    Some((provider.to_owned(), name.to_owned()))
}

const MODERN: Revision = Revision::V2026_07_28;
const LEGACY: Revision = Revision::V2025_11_25;

#[test]
fn what_an_upstream_wrote_is_listed_byte_for_byte() {
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
        let upstream = Stocked::new("fs", prefix, LEGACY, catalog.clone());
        let table = Router::new(&[&upstream]).table();
        for revision in Revision::ALL {
            let named = |text: &str, name: &str| text.replace(&format!("\"{name}\""), &format!("\"{prefix}{name}\""));
            assert_eq!(table.tools()[0].listed(revision), named(text, "t"));
            assert_eq!(table.prompts()[0].listed(revision), named(prompt, "p"));
            assert_eq!(table.resources()[0].listed(revision), resource.replace("file:", &format!("{scheme}file:")));
            assert_eq!(table.templates()[0].listed(revision), template.replace("file:", &format!("{scheme}file:")));
        }
    }
}

#[test]
fn ten_thousand_tools_are_looked_up_and_nothing_is_done_for_those_that_nobody_asks_for() {
    let all: Vec<_> = (0..10_000).map(|n| tool(&format!("t{n}"))).collect();
    let catalog = Catalog { tools: raws(&all), ..Catalog::default() };
    let upstream = Stocked::new("fs", "fs__", LEGACY, catalog);
    let table = Router::new(&[&upstream]).table();
    assert_eq!(table.tools().len(), 10_000);
    assert_eq!(served(&table, "fs__t9999"), is("fs", "fs__t9999"));
    assert_eq!(served(&table, "fs__t10000"), None);
    table.tool("fs__t5").unwrap().input().unwrap();
    assert!(table.tool("fs__t7").unwrap().listed(LEGACY).contains("fs__t7"));
    let compiled = table.tools().iter().filter(|route| route.input.get().is_some());
    assert_eq!(compiled.map(|route| route.name.as_str()).collect::<Vec<_>>(), ["fs__t5"]);
    let written = table.tools().iter().filter(|route| route.rendered.is_written(LEGACY));
    assert_eq!(written.map(|route| route.name.as_str()).collect::<Vec<_>>(), ["fs__t7"]);
    assert!(table.tools().iter().zip(0..).all(|(route, n)| route.name == format!("fs__t{n}")), "in their order");
}

#[test]
fn a_schema_that_is_none_concerns_only_who_calls_the_tool() {
    let bad = r#"{"name":"bad","inputSchema":{"type":"object","properties":{"a":{"type":"nothing"}}}}"#;
    let upstream = Stocked::new("fs", "", LEGACY, tools(&[bad, &tool("good")]));
    let table = Router::new(&[&upstream]).table();
    assert_eq!(table.tools().len(), 2);
    assert!(table.tool("good").unwrap().input().is_ok());
    let route = table.tool("bad").unwrap();
    let error = route.input().unwrap_err();
    assert_eq!((error.kind, error.data["tool"].as_str()), (ErrorKind::ToolExecution, Some("bad")));
}

#[test]
fn a_schema_that_would_take_years_is_left_to_its_server() {
    let twice = r##"{"properties":{"a":{"$ref":"#"}}}"##;
    let hostile = format!(r#"{{"name":"t","inputSchema":{{"type":"object","allOf":[{twice},{twice}]}}}}"#);
    let upstream = Stocked::new("fs", "", LEGACY, tools(&[&hostile]));
    assert!(Router::new(&[&upstream]).table().tool("t").unwrap().input().unwrap().is_none());
}

#[test]
fn a_schema_is_read_in_the_dialect_that_it_names() {
    let schema = r#"{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"a":{"items":[{"type":"string"}]}}}"#;
    let upstream = Stocked::new("fs", "", LEGACY, tools(&[&format!(r#"{{"name":"t","inputSchema":{schema}}}"#)]));
    let table = Router::new(&[&upstream]).table();
    let route = table.tool("t").unwrap();
    let input = route.input().unwrap().unwrap();
    assert!(input.is_valid(&serde_json::json!({ "a": ["x", 1] })));
    assert!(!input.is_valid(&serde_json::json!({ "a": [1] })));
}

#[test]
fn a_tool_whose_headers_cannot_be_sent_is_hidden_where_clients_would_drop_it() {
    let headed =
        r#"{"name":"headed","inputSchema":{"type":"object","properties":{"a":{"type":"object","x-mcp-header":"A"}}}}"#;
    for (revision, there) in [(MODERN, false), (LEGACY, true)] {
        let upstream = Stocked::new("fs", "", revision, tools(&[headed, &tool("good")]));
        let table = Router::new(&[&upstream]).table();
        assert_eq!(table.tool("headed").is_some(), there);
        assert_eq!(table.tools().len(), 1 + usize::from(there));
        assert_eq!(table.warnings("fs").iter().any(|w| w.contains("headed") && w.contains("left out")), !there);
        assert!(table.tool("headed").is_none_or(|route| route.param_headers.is_empty()));
    }
}

#[test]
fn names_that_clients_refuse_are_reported_and_kept() {
    let upstream = Stocked::new("fs", "fs__", LEGACY, tools(&[&tool("a b"), &tool(&"x".repeat(64)), &tool("fine")]));
    let table = Router::new(&[&upstream]).table();
    assert_eq!(table.tools().len(), 3);
    assert_eq!(table.warnings("fs").len(), 2, "{:?}", table.warnings("fs"));
}

#[test]
fn warnings_are_bounded() {
    let all: Vec<_> = (0..500).map(|n| tool(&format!("a b{n}"))).collect();
    let upstream = Stocked::new("fs", "", LEGACY, Catalog { tools: raws(&all), ..Catalog::default() });
    let warnings = Router::new(&[&upstream]).table().warnings("fs");
    assert_eq!(warnings.len(), 51);
    assert_eq!(warnings[50], "and 450 more");
}

#[test]
fn a_collision_at_start_names_both_and_one_that_comes_later_leaves_the_holder() {
    let (a, b) = (Stocked::new("a", "", LEGACY, tools(&[])), Stocked::new("b", "", LEGACY, tools(&[&tool("t")])));
    let router = Router::new(&[&a, &b]);
    let before = router.table();
    assert_eq!(served(&before, "t"), is("b", "t"));
    testing::restock(&a.0, tools(&[&tool("t"), &tool("u")]));
    let error = router.build(true).err().unwrap();
    assert_eq!(error.to_string(), r#"both a and b offer a tool named "t""#);
    // `a` comes first in the configuration, and yet the name does not change its meaning under its clients.
    let later = Router { previous: Some(&before), ..router }.build(false).unwrap();
    assert_eq!(served(&later, "t"), is("b", "t"));
    assert_eq!(served(&later, "u"), is("a", "u"));
    assert_eq!(later.tools().iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["u", "t"]);
    assert!(later.warnings("a")[0].contains("b offers a tool named \"t\" too"), "{:?}", later.warnings("a"));
    assert!(later.warnings("b").is_empty());
}

#[test]
fn prompts_uris_and_schemes_collide_too() {
    let prompt = || Catalog { prompts: raws(&[r#"{"name":"p"}"#.to_owned()]), ..Catalog::default() };
    let resource = || Catalog { resources: raws(&[r#"{"uri":"a:b","name":"r"}"#.to_owned()]), ..Catalog::default() };
    let template =
        || Catalog { templates: raws(&[r#"{"uriTemplate":"a:{b}","name":"r"}"#.to_owned()]), ..Catalog::default() };
    for (catalog, what) in [
        (&prompt as &dyn Fn() -> Catalog, "a prompt named \"p\""),
        (&resource, "a resource named \"a:b\""),
        (&template, "a resource template named \"a:{b}\""),
    ] {
        let (a, b) = (Stocked::new("a", "", LEGACY, catalog()), Stocked::new("b", "", LEGACY, catalog()));
        let error = Router::new(&[&a, &b]).build(true).err().unwrap();
        assert_eq!(error.to_string(), format!("both a and b offer {what}"));
        let table = Router::new(&[&a, &b]).build(false).unwrap();
        assert_eq!(table.warnings("b").len(), 1);
        assert_eq!(table.prompts().len() + table.resources().len() + table.templates().len(), 1);
    }
    let (a, b) =
        (Stocked::new("my server", "a", LEGACY, tools(&[])), Stocked::new("My_Server", "b", LEGACY, tools(&[])));
    let error = Router::new(&[&a, &b]).build(true).err().unwrap();
    assert_eq!(error.to_string(), r#"both my server and My_Server offer resources named "my-server+""#);
}

#[test]
fn priority_decides_among_several_and_the_next_one_serves_while_the_first_was_never_reached() {
    let both = || tools(&[&tool("t")]);
    let (a, b) = (Stocked::new("a", "", LEGACY, both()), Stocked::new("b", "", LEGACY, both()));
    let mut router = Router::new(&[&a, &b]);
    router.aliases.priority = vec!["b".into(), "a".into()];
    let table = router.table();
    assert_eq!(served(&table, "t"), is("b", "t"));
    assert_eq!(served(&table, "a.t"), is("a", "t"), "by its provider's name each is still there");
    assert_eq!(table.tools().len(), 1);
    testing::lose(&b.0);
    assert_eq!(served(&table, "t"), is("a", "t"));
    assert_eq!(served(&table, "b.t"), is("b", "t"));
    // With one that is not named, it is an error as ever.
    router.aliases.priority = vec!["b".into(), "c".into()];
    assert!(router.build(true).is_err());
}

#[test]
fn names_that_begin_like_another_servers_are_left_out_and_the_longest_beginning_decides() {
    let names = ["good__query", "good.query", "good__deep__x", "tracker__x", "gateway.y", "good_query", "own"];
    let good = Stocked::new("good", "good__", LEGACY, tools(&[]));
    let deep = Stocked::new("deep", "good__deep__", LEGACY, tools(&[&tool("y")]));
    let all: Vec<String> = names.iter().map(|name| tool(name)).collect();
    let evil = Stocked::new("evil", "", LEGACY, Catalog { tools: raws(&all), ..Catalog::default() });
    let mut router = Router::new(&[&evil, &good, &deep]);
    let table = router.table();
    let listed: Vec<_> = table.tools().iter().map(|route| route.name.as_str()).collect();
    assert_eq!(listed, ["good_query", "own", "good__deep__y"]);
    let warnings = table.warnings("evil");
    assert_eq!(warnings.len(), 5, "{warnings:?}");
    assert!(warnings[2].contains(r#"begin with "good__deep__" are those of deep"#), "{warnings:?}");
    // Where the operator has ranked both, they share names.
    router.aliases.priority = vec!["good".into(), "evil".into()];
    assert_eq!(served(&router.table(), "good__query"), is("evil", "good__query"));
    // A server's own names may begin like another's only if its prefix is the longer one.
    let clash = Stocked::new("a", "a_", LEGACY, tools(&[&tool("b_x"), &tool("c")]));
    let table = Router::new(&[&clash, &Stocked::new("b", "a_b_", LEGACY, tools(&[]))]).table();
    assert_eq!(table.tools().iter().map(|route| route.name.as_str()).collect::<Vec<_>>(), ["a_c"]);
}

#[test]
fn a_name_is_waited_for_where_a_server_that_was_not_reached_may_have_it() {
    use super::awaited::Kind;
    let good = Stocked::new("good", "good__", LEGACY, tools(&[]));
    let plain = Stocked::new("plain", "", LEGACY, tools(&[&tool("own")]));
    testing::reach(&plain.0);
    let mut router = Router::new(&[&plain, &good]);
    router.aliases.prefixes = vec![("g-".into(), "good".into())];
    let table = router.table();
    let awaited = |name: &str, kind| table.awaited(name, kind).map(|expected| expected.upstream.config.name.clone());
    for (name, tool, prompt) in [
        ("good__query", Some("good"), Some("good")),
        ("good.query", Some("good"), None),
        ("g-query", Some("good"), None),
        ("query", None, None),
        ("goods__query", None, None),
    ] {
        assert_eq!(awaited(name, Kind::Tool).as_deref(), tool, "{name}");
        assert_eq!(awaited(name, Kind::Prompt).as_deref(), prompt, "{name}");
    }
    assert_eq!(
        table.awaited_resource("GOOD+x:y").map(|expected| expected.upstream.config.name.clone()).as_deref(),
        Some("good")
    );
}

#[test]
fn any_name_waits_for_an_unprefixed_server_not_reached() {
    use super::awaited::Kind;
    let good = Stocked::new("good", "good__", LEGACY, tools(&[&tool("query")]));
    testing::reach(&good.0);
    let offers = Catalog { resources: raws(&[r#"{"uri":"a:listed","name":"r"}"#.to_owned()]), ..Catalog::default() };
    let other = Stocked::new("other", "", LEGACY, offers);
    testing::reach(&other.0);
    let plain = Stocked::new("plain", "", LEGACY, Catalog::default());
    testing::lose(&plain.0);
    let mut router = Router::new(&[&good, &other, &plain]);
    let named = |expected: Option<super::awaited::Expected>| {
        expected.map(|expected| (expected.upstream.config.name.clone(), expected.certain))
    };
    let is = |certain: bool| Some(("plain".to_owned(), certain));
    let table = router.table();
    assert_eq!(named(table.awaited("query", Kind::Tool)), is(false));
    assert_eq!(named(table.awaited("query", Kind::Prompt)), is(false));
    // The one server whose name it could be is there.
    assert_eq!(named(table.awaited("good__other", Kind::Tool)), None);
    assert_eq!(named(table.awaited_resource("b:anything")), is(false));
    assert_eq!(named(table.awaited_resource("a:listed")), None);
    assert_eq!(named(table.awaited_resource("good+a:anything")), None);
    // The store knows by which tools the server goes, and by which it does not.
    router.pin("plain", &["query"]);
    let table = router.table();
    assert_eq!(named(table.awaited("query", Kind::Tool)), is(true));
    assert_eq!(named(table.awaited("quarry", Kind::Tool)), None);
    assert_eq!(named(table.awaited("quarry", Kind::Prompt)), is(false));
    testing::reach(&plain.0);
    assert_eq!(named(router.table().awaited("query", Kind::Tool)), None);
}

#[test]
fn unknown_name_of_a_pinned_server_not_reached_fails_at_once() {
    use super::awaited::Kind;
    let good = Stocked::new("good", "good__", LEGACY, Catalog::default());
    testing::lose(&good.0);
    let mut router = Router::new(&[&good]);
    router.aliases = Aliases::new(&RoutesConfig {
        prefixes: vec![("good__old-".to_owned(), "good".to_owned())],
        categories: vec![],
        patterns: vec![("good__was_(.*)".to_owned(), "good__$1".to_owned())],
        priority: vec![],
        fallback: None,
    })
    .unwrap();
    let spellings = ["good__query", "good.query", "good.good__query", "good__old-query", "good__was_query"];
    let unknown = ["good__quarry", "good.quarry", "good.good__quarry", "good__query.", "good."];
    let table = router.table();
    for name in spellings.iter().chain(&unknown) {
        assert!(table.awaited(name, Kind::Tool).is_some(), "{name}: nothing is known yet");
    }
    router.pin("good", &["good__query"]);
    let table = router.table();
    for name in spellings {
        assert!(table.awaited(name, Kind::Tool).is_some_and(|expected| expected.certain), "{name}");
    }
    for name in unknown {
        assert!(table.awaited(name, Kind::Tool).is_none(), "{name}");
    }
    assert!(table.awaited("good__quarry", Kind::Prompt).is_some(), "prompts are not recorded");
}

#[test]
fn ways_to_a_tool_of_a_prefixed_server() {
    let fs = Stocked::new("fs", "fs__", LEGACY, tools(&[&tool("read"), &tool("do_write")]));
    let web = Stocked::new("web", "w_", LEGACY, tools(&[&tool("read"), &tool("get")]));
    let mut router = Router::new(&[&fs, &web]);
    let pairs = |pairs: &[(&str, &str)]| pairs.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect();
    router.aliases = Aliases::new(&RoutesConfig {
        prefixes: pairs(&[("f-", "fs")]),
        categories: pairs(&[("file.*", "fs"), ("file.change.*", "fs/do_*"), ("fetch", "web/get")]),
        patterns: pairs(&[("old_(.*)", "fs__$1")]),
        priority: vec![],
        fallback: Some("web".into()),
    })
    .unwrap();
    let table = router.table();
    for (name, to) in [
        ("fs__read", is("fs", "fs__read")),
        ("fs.read", is("fs", "fs__read")),
        ("fs.fs__read", is("fs", "fs__read")),
        ("web.do_write", None),
        ("f-read", is("fs", "fs__read")),
        ("file.read", is("fs", "fs__read")),
        ("file.change.write", is("fs", "fs__do_write")),
        ("file.nothing", None),
        ("fetch", is("web", "w_get")),
        ("old_read", is("fs", "fs__read")),
        // What leads nowhere else is looked for at the fallback.
        ("read", is("web", "w_read")),
        ("do_write", None),
    ] {
        assert_eq!(served(&table, name), to, "{name}");
        assert_eq!(served(&table, name), to, "{name} again");
    }
    assert_eq!(table.detours.read().len(), 8, "what was found is remembered, what was not is not");
}

#[test]
fn a_uri_goes_to_its_owner_then_by_what_is_listed() {
    let resources = |uris: &[&str], templates: &[&str]| Catalog {
        resources: raws(&uris.iter().map(|uri| format!(r#"{{"uri":"{uri}","name":"r"}}"#)).collect::<Vec<_>>()),
        templates: raws(
            &templates.iter().map(|uri| format!(r#"{{"uriTemplate":"{uri}","name":"r"}}"#)).collect::<Vec<_>>(),
        ),
        ..Catalog::default()
    };
    let fs = Stocked::new("fs", "fs__", LEGACY, resources(&["file:///a"], &[]));
    let a = Stocked::new("a", "", LEGACY, resources(&["demo://one", "file:///x"], &["demo://{id}/a"]));
    let b = Stocked::new("b", "", LEGACY, resources(&["demo://two"], &["{+all}/greedy", "test://{id}"]));
    let of = |table: &RouteTable, uri: &str| table.resource(uri).map(|p| p.name().to_owned());
    let table = Router::new(&[&fs, &a, &b]).table();
    for (uri, to) in [
        ("fs+file:///a", Some("fs")),
        ("FS+file:///never/listed", Some("fs")),
        // No greedy template takes what is another's.
        ("fs+file:///greedy", Some("fs")),
        ("demo://one", Some("a")),
        ("demo://two", Some("b")),
        ("demo://7/a", Some("a")),
        ("demo://{id}/a", Some("a")),
        ("other:///greedy", Some("b")),
        ("test://1", Some("b")),
        // By the scheme of what is listed.
        ("demo://three", Some("a")),
        ("file:///y", Some("a")),
        ("nobody://x", None),
        ("no uri", None),
    ] {
        assert_eq!(of(&table, uri).as_deref(), to, "{uri}");
    }
    // The only one with resources answers for all that is nobody's.
    let table = Router::new(&[&fs, &a]).table();
    assert_eq!(of(&table, "nobody://x").as_deref(), Some("a"));
    // What begins like another's cannot be offered.
    let thief = Stocked::new("thief", "", LEGACY, resources(&["fs+file:///b", "own:x"], &[]));
    let table = Router::new(&[&fs, &thief]).table();
    let warning = r#"a resource "fs+file:///b" is left out: such URIs are those of fs"#;
    assert_eq!(table.warnings("thief"), [warning]);
    assert_eq!(of(&table, "fs+file:///b").as_deref(), Some("fs"));
    assert_eq!(table.resources().len(), 2);
}

#[test]
fn versions_move_with_their_own_list_only() {
    let a = Stocked::new("a", "", LEGACY, tools(&[&tool("t")]));
    let router = Router::new(&[&a]);
    let first = router.table();
    let next = |previous: &RouteTable| Router { previous: Some(previous), ..Router::new(&[&a]) }.build(false).unwrap();
    let second = next(&first);
    assert_eq!((second.generation, second.versions), (first.generation + 1, first.versions));
    testing::restock(
        &a.0,
        Catalog { resources: raws(&[r#"{"uri":"a:b","name":"r"}"#.to_owned()]), ..tools(&[&tool("t")]) },
    );
    let third = next(&second);
    assert_eq!(third.versions, Versions { resources: third.generation, ..first.versions });
    testing::restock(
        &a.0,
        Catalog { resources: raws(&[r#"{"uri":"a:b","name":"r"}"#.to_owned()]), ..tools(&[&tool("u")]) },
    );
    let fourth = next(&third);
    assert_eq!(fourth.versions, Versions { tools: fourth.generation, ..third.versions });
}

#[test]
fn what_servers_say_reaches_whoever_sees_something_of_them() {
    let saying = |name: &str, says: &str, catalog: Catalog, instructions: bool| {
        let target = UpstreamTarget::Command { command: "x".into(), args: vec![], env: BTreeMap::default(), cwd: None };
        let config = UpstreamConfig { instructions, ..UpstreamConfig::new(name, target) };
        let negotiated =
            Negotiated { instructions: Some(says.to_owned()), ..testing::negotiated(Revision::V2025_11_25) };
        Stocked(testing::stocked(config, negotiated, catalog)).provider()
    };
    let deny = |server: &str, roles: Vec<Role>| Rule {
        servers: Globs::new(vec![server.to_owned()]).unwrap(),
        roles,
        ..Rule::new(server, Verdict::Deny)
    };
    let rules = vec![deny("secret", vec![Role::Agent]), deny("off", Vec::new())];
    let policy = Policy::new(&PolicyConfig { rules, ..PolicyDefault::ReviewWrites.into() });
    let build = |providers: &[Target]| {
        RouteTable::build(1, providers, &policy, &Aliases::default(), &serde_json::json!({})).unwrap()
    };
    let some = || tools(&[&tool("a")]);
    let table = build(&[
        saying("one", "Ask first.\nThen act.", some(), true),
        saying("dropped", "never", some(), false),
        saying("secret", "hush", some(), true),
        saying("off", "denied", some(), true),
        saying("empty", "nothing to offer", Catalog::default(), true),
    ]);
    let principal = |role| Principal { role, ..Principal::local_agent() };
    let one = "\n\nThe server `one` says of itself:\n  Ask first.\n  Then act.";
    let secret = "\n\nThe server `secret` says of itself:\n  hush";
    assert_eq!(&*table.briefings(&principal(Role::Agent)), one);
    assert_eq!(&*table.briefings(&principal(Role::Reviewer)), format!("{one}{secret}"));

    let many: Vec<_> = (0..20).map(|n| saying(&format!("s{n}"), &"x".repeat(9000), some(), true)).collect();
    let text = build(&many).briefings(&principal(Role::Agent)).to_string();
    assert!(text.len() <= super::server_instructions::MAX_ALL && text.contains("`s6`") && text.ends_with("left out."));
    assert!(!text.contains("`s7`"), "{}", text.len());
}

#[test]
fn arguments_are_checked_only_where_that_takes_bounded_time() {
    let def = |pattern: &str| {
        let def = countersign_provider::testing::tool("t", &json!({ "a": { "items": { "pattern": pattern } } }));
        ToolDef { raw: Some(Arc::from(RawValue::from_string("{}".to_owned()).unwrap())), ..def }
    };
    assert!(compile(&def("^(a+)+$")).unwrap().is_some());
    // A validator tries these in every way there is, for each item anew.
    for pattern in ["^((?=a)a|a)*$", "^(a|a)*\\1$"] {
        assert!(compile(&def(pattern)).unwrap().is_none(), "{pattern}");
    }
    assert!(compile(&def("(")).is_err(), "what is no pattern is an error");
}
