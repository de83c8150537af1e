//! Tests of the names and URIs that the table resolves, and of their conflicts.

use super::*;

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
    let (tracker, _dir) = open_tracker();
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
fn strict_build_refuses_only_new_collisions() {
    let both = || tools(&[&tool("t")]);
    let (a, b, c) = (
        UpstreamFixture::new("a", "", LEGACY, both()),
        UpstreamFixture::new("b", "", LEGACY, both()),
        UpstreamFixture::new("c", "", LEGACY, tools(&[])),
    );
    let before = TableFixture::new(&[&a, &b, &c]).build(false).unwrap();
    let later = TableFixture { previous: Some(&before), ..TableFixture::new(&[&a, &b, &c]) };
    assert_eq!(serving_tool(&later.table(), "t"), routed_tool("a", "t"));
    testing::replace_catalog(&c.0, both());
    let error = later.build(true).err().unwrap();
    assert_eq!(error.to_string(), r#"both a and c offer a tool named "t""#);
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
        let later = TableFixture { previous: Some(&table), ..TableFixture::new(&[&a, &b]) };
        assert_eq!(later.table().warnings("b").len(), 1, "the conflict is not new");
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
    assert!(warnings[2].contains(r#"begin with "good__deep__" are reserved for deep"#), "{warnings:?}");
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
    assert_eq!(table.resolved_aliases.read().len(), 8, "only resolved aliases are cached");
}

#[test]
fn uri_resolves_by_prefix_owner_then_by_lists() {
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
    // A URI with another server's prefix cannot be offered.
    let thief = UpstreamFixture::new("thief", "", LEGACY, resources(&["fs+file:///b", "own:x"], &[]));
    let table = TableFixture::new(&[&fs, &thief]).table();
    let warning = r#"a resource "fs+file:///b" is left out: such URIs are reserved for fs"#;
    assert_eq!(table.warnings("thief"), [warning]);
    assert_eq!(provider_of(&table, "fs+file:///b").as_deref(), Some("fs"));
    assert_eq!(table.resources().len(), 2);
}
