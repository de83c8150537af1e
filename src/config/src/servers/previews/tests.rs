//! Tests how recipes are compiled, and which ones a server uses.

use super::*;
use countersign_domain::{changes::StateEffect, recipes::TextTemplate};

fn parsed(yaml: &str) -> (Recipes, Vec<String>) {
    let target = UpstreamTarget::Command {
        command: "npx".into(),
        args: vec!["@modelcontextprotocol/server-memory".into()],
        env: Default::default(),
        cwd: None,
    };
    let value = tree::parse(yaml).unwrap();
    let entries = [KeyValue { key: KEY.into(), line: 1, column: 1, value }];
    let origin = Origin::File { path: Default::default(), line: 0, column: 0 };
    let section = SourcedNode { node: Node::Null, origin: origin.clone(), base: Path::new("/").into() };
    let mut reader = Reader::default();
    let mut fields = Fields::new(&mut reader, &section, "s".into(), origin, &entries);
    let recipes = read(&mut fields, Some(&target));
    (recipes, reader.problems.iter().map(ToString::to_string).collect())
}

#[test]
fn every_shipped_recipe_can_be_read() {
    for set in &shipped_recipes::SHIPPED_RECIPE_SETS {
        let (recipes, faults) = parsed(&set.yaml.inflate());
        assert_eq!(faults, Vec::<String>::new(), "{}", set.name);
        assert_eq!(recipes_of_set(set), *recipes.by_tool);
        assert!(!recipes.by_tool.is_empty(), "{}", set.name);
    }
}

#[test]
fn every_shipped_recipe_is_tried_with_its_server() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/clients");
    let read = |file: &str| std::fs::read_to_string(folder.join(file));
    let shared = read("previews.test.mjs").unwrap() + &read("previews-sql.test.mjs").unwrap();
    for set in &shipped_recipes::SHIPPED_RECIPE_SETS {
        // A set with many tools has a suite of its own, with a list of calls.
        let own = read(&format!("previews-{}.test.mjs", set.name));
        let tests = own.as_ref().unwrap_or(&shared);
        let is_tried = |tool: &str| {
            ["',", ", "].iter().any(|end| tests.contains(&format!("['{tool}{end}")))
                || tests.contains(&format!("('{tool}',"))
        };
        assert!(own.is_ok() || shared.contains(&format!("startBehind(t, ['{}']", set.name)), "{}", set.name);
        for (tool, recipe) in recipes_of_set(set) {
            let operations = recipe.dispatcher.iter().flat_map(|dispatcher| &dispatcher.operations);
            let shown = operations.filter(|(_, operation)| !operation.has_no_method());
            let named: Vec<String> = shown.map(|(operation, _)| format!("{tool}/{operation}")).collect();
            for name in if recipe.dispatcher.is_some() { named } else { vec![tool] } {
                assert!(is_tried(&name), "{name}");
            }
        }
    }
}

#[test]
fn later_preview_layers_override_earlier_ones() {
    let (recipes, faults) = parsed("auto");
    assert!(faults.is_empty());
    assert_eq!(recipes.sets, ["memory"]);
    assert!(recipes.get("delete_entities").is_some() && recipes.tools_with_own_recipe.is_empty());
    let (recipes, faults) = parsed(
        "[auto, git, {delete_entities: none, mine: {reads: [{tool: look, arguments: {a: 1, b: arguments.x}}]}}]",
    );
    assert!(faults.is_empty(), "{faults:?}");
    assert_eq!(
        (recipes.sets.as_slice(), recipes.tools_with_own_recipe.as_slice()),
        (&["memory", "git"][..], &["mine".to_owned()][..])
    );
    assert!(recipes.get("delete_entities").is_none() && recipes.get("git_add").is_some());
    let mine = recipes.get("mine").unwrap();
    assert_eq!((&mine.reads[0].label, mine.reads[0].arguments.len()), (&TextTemplate::Literal("look".into()), 2));
    assert!(parsed("none").0.is_empty());
}

#[test]
fn only_written_recipes_count_as_more_calls() {
    let (automatic, _) = parsed("auto");
    let (mine, _) = parsed("{mine: {reads: [{tool: look}]}}");
    let (other, _) = parsed("{mine: {reads: [{tool: touch}]}}");
    let none = Recipes::default();
    assert!(!automatic.permits_more_than(&none) && !none.permits_more_than(&mine));
    assert!(mine.permits_more_than(&automatic) && other.permits_more_than(&mine) && !mine.permits_more_than(&mine));
    // If the operator names a set for the server, its dry runs are trusted.
    let (named, _) = parsed("filesystem");
    let (both, _) = parsed("[filesystem, auto]");
    let (mut confirms, _) = parsed("{mine: {reads: [{tool: look}], confirm: {question: Sure, answer: {}}}}");
    confirms.tools_with_own_recipe.clear();
    assert!(confirms.permits_more_than(&none), "an answer to a question waits for consent");
    confirms.trust_only(&[]);
    assert!(!confirms.permits_more_than(&none));
    assert!(named.permits_more_than(&none) && !both.permits_more_than(&named) && !automatic.permits_more_than(&named));
}

#[test]
fn verification_sees_the_result_and_previews_do_not() {
    let verify =
        "verify: {tool: look, arguments: {id: result.structuredContent.id}, keep: 'found + result', after: before}";
    let (recipes, faults) = parsed(&format!("{{a: {{reads: [{{tool: look}}], {verify}}}}}"));
    assert!(faults.is_empty(), "{faults:?}");
    let verify = recipes.get("a").unwrap().verify.as_ref().unwrap();
    assert!(verify.read.uses("result") && verify.read.pick.keep.as_ref().unwrap().uses("result"));
    let (_, faults) = parsed("{a: {reads: [{tool: look, arguments: {id: result.id}}]}}");
    assert!(faults[0].contains("there is no `result`"), "{faults:?}");
}

#[test]
fn creation_needs_no_state_before() {
    let (recipes, faults) = parsed("{a: {operation: create, after: {name: arguments.name}, reads: [{tool: look}]}}");
    assert!(faults.is_empty(), "{faults:?}");
    assert!(recipes.get("a").unwrap().before.is_none());
}

#[test]
fn recipe_tells_how_state_after_depends_on_before() {
    use StateEffect::{Dependent, Fields, Whole};
    for (recipe, state_effect) in [
        ("before: {tool: look}, after: arguments.text", Whole),
        ("operation: delete, before: {tool: look}", Whole),
        ("before: {tool: look, as: json}, after: {title: arguments.title, body?: arguments.body}", Fields),
        ("before: {tool: look}, after: before + arguments.text", Dependent),
        ("before: {tool: look, as: json}, after: {n: '{before.n + 1}'}", Dependent),
        ("before: {tool: look, as: yaml}, after: {title: arguments.title}", Dependent),
        ("before: {tool: look, for_each: arguments.l}, after: element.text", Dependent),
        ("dry_run: {arguments: {dry: true}}, before: {tool: look}, after: arguments.text", Dependent),
        ("operation: create, after: {name: arguments.name}, reads: [{tool: look}]", Dependent),
        ("reads: [{tool: look}]", Dependent),
    ] {
        let (recipes, faults) = parsed(&format!("{{a: {{{recipe}}}}}"));
        assert!(faults.is_empty(), "{faults:?}");
        assert_eq!(recipes.get("a").unwrap().state_effect(), state_effect, "{recipe}");
    }
}

#[test]
fn preview_problem_is_reported_with_position() {
    for (yaml, expected) in [
        ("7", ":1:1: s.previews: expected previews"),
        ("nothing", ":1:1: s.previews: there is no set of previews `nothing`"),
        ("a: {}", ":1:4: s.previews.a: the recipe shows nothing"),
        ("a: {befor: {}}", ":1:5: s.previews.a.befor: unknown key"),
        ("a: {before: {tool: x}}", ":1:4: s.previews.a: `before` and `after` belong together"),
        ("a: {before: {}, after: 'before'}", ":1:13: s.previews.a.before: the read does not say which `tool`"),
        ("a: {dry_run: {arguments: {}}}", ":1:14: s.previews.a.dry_run: a dry run without arguments"),
        ("a: {dry_run: {arguments: {'a\"b': 1}}}", "previews.a.dry_run.arguments.`a\\\"b`: this cannot be the name"),
        ("a: {reads: [{tool: x, text: content}]}", "previews.a.reads.text: expected a JSON pointer"),
        ("a: {reads: [{tool: x, lines: '('}]}", "previews.a.reads.lines: `(` is not a regular"),
        ("a: {reads: [{tool: x, as: html}]}", "previews.a.reads.as: `html` is not one of"),
        ("a: {reads: [{tool: x}], verify: {tool: x}}", ":1:33: s.previews.a.verify: nothing says what is expected"),
        ("a: {reads: [{tool: x}], verify: {after: '1'}}", "previews.a.verify: the read does not say which `tool`"),
        ("a: {after: '1', reads: [{tool: x}]}", "previews.a: `before` and `after` belong together"),
        ("a: {reads: []}", "previews.a.reads: expected a list"),
        (
            "a: {target: before.x, reads: [{tool: x}]}",
            "previews.a.target: the expression cannot be used: there is no `before`",
        ),
        ("a: {operation: move, reads: [{tool: x}]}", "previews.a.operation: `move` is not one of"),
        (
            "a: {summary: '\"Write \" + arguments.x', reads: [{tool: x}]}",
            "previews.a.summary: the expression in it is not in braces",
        ),
        (
            "a: {reads: [{tool: x, arguments: {b: '{arguments.'}}]}",
            "a.reads.arguments.b: the brace in it is never closed",
        ),
        (
            "a: {reads: [{tool: x, arguments: {b: element.x}}]}",
            "a.reads.arguments.b: the expression cannot be used: there is no",
        ),
        ("a: {reads: [{tool: x, ignore: [a..b]}]}", "a.reads.ignore: `a..b` is not a path of fields"),
        ("a: {reads: [{tool: x, keep: []}]}", "a.reads.keep: expected a text or a list of texts"),
        ("a: {variants: []}", "previews.a.variants: expected a list of 1 to"),
        ("a: {variants: [{reads: [{tool: x}]}]}", "previews.a.variants: the variant has no condition"),
        ("a: {variants: [{when: 'true'}]}", "previews.a.variants: the recipe shows nothing"),
        ("a: {variants: [{when: 'true', variants: []}]}", "previews.a.variants.variants: unknown key"),
        ("a: {operation: update, before: {tool: x}}", "previews.a: `before` and `after` belong together"),
        ("a: {reads: [{tool: x}], confirm: {answer: {}}}", "previews.a.confirm: it does not say which `question`"),
        ("a: {operations: {X: {}}}", "previews.a.operation: with `operations`, it must be the path"),
        ("a: {operation: delete, operations: {X: {}}}", "previews.a.operation: with `operations`, it must be the path"),
        ("a: {operation: arguments.x, operations: {'X/*': {}}}", "operations.`X/*`: this cannot be the name"),
        ("a: {tried: [], reads: [{tool: x}]}", "previews.a.tried: expected 1 to"),
        (
            "a: {sql: {dialect: oracle, statement: arguments.q, query: {tool: x, argument: q}}}",
            "previews.a.sql.dialect: `oracle` is no",
        ),
        (
            "a: {sql: {dialect: sqlite, query: {tool: x, argument: q}}}",
            "previews.a.sql: `sql` needs `dialect`, `statement`",
        ),
        ("a: {sql: {dialect: sqlite, statement: arguments.q, query: {}}}", "previews.a.sql"),
        (
            "a: {sql: {dialect: sqlite, statement: arguments.q, query: {tool: x, argument: q}, rows: 0}}",
            "previews.a.sql",
        ),
        (
            "a: {sql: {dialect: sqlite, statement: arguments.q, query: {tool: x, argument: q}}, reads: [{tool: x}]}",
            "previews.a: `sql` cannot be combined with other methods",
        ),
    ] {
        let (_, faults) = parsed(yaml);
        assert_eq!(faults.len(), 1, "{yaml}: {faults:?}");
        assert!(faults[0].contains(expected), "{yaml}: {faults:?}");
    }
}

#[test]
fn set_and_recipe_say_what_they_were_tried_with() {
    let look = "reads: [{tool: look}]";
    let (recipes, faults) = parsed(&format!("{{tried: [p 1, p 2], a: {{{look}}}, b: {{{look}, tried: q 3}}}}"));
    assert_eq!(faults, Vec::<String>::new());
    let tried = |tool: &str| recipes.get(tool).unwrap().tried_text();
    assert_eq!((tried("a"), tried("b")), ("p 1, p 2".to_owned(), "q 3".to_owned()));
    let (recipes, _) = parsed(&format!("{{tried: {{{look}}}}}"));
    assert_eq!(recipes.get("tried").unwrap().tried_text(), "none", "a tool may have that name");
    for set in &shipped_recipes::SHIPPED_RECIPE_SETS {
        assert!(recipes_of_set(set).values().all(|recipe| !recipe.tried.is_empty()), "{}", set.name);
    }
}

#[test]
fn sql_recipe_is_compiled_and_trusted_like_a_dry_run() {
    let sql =
        "sql: {dialect: title, statement: arguments.q, query: {tool: run, argument: q, arguments: {p?: arguments.p}}}";
    let (recipes, faults) = parsed(&format!("a: {{{sql}}}"));
    assert_eq!(faults, Vec::<String>::new());
    let recipe = recipes.get("a").unwrap().sql.as_ref().unwrap();
    assert_eq!((recipe.query.tool.as_str(), recipe.query.arguments.len(), recipe.rows), ("run", 1, 50));
    assert!(recipe.is_trusted, "the operator wrote it");
    let is_trusted = |yaml: &str| parsed(yaml).0.get("write_query").unwrap().sql.as_ref().unwrap().is_trusted;
    assert!(is_trusted("sqlite"), "the operator named the set");
    let set = shipped_recipes::find_by_name("sqlite").unwrap();
    let mut layers = RecipeLayers::default();
    layers.add_set(set, false);
    assert_eq!(layers.finish().trusted_tools(), Vec::<String>::new());
}

#[test]
fn variant_inherits_what_it_does_not_say() {
    let (recipes, faults) = parsed(
        "{a: {entity: page, reads: [{tool: look}], variants: [{when: arguments.x == 1, operation: create}, \
         {when: 'true', entity: draft, before: {tool: look, for_each: arguments.l}, after: element.x}]}}",
    );
    assert_eq!(faults, Vec::<String>::new());
    let recipe = recipes.get("a").unwrap();
    let entities: Vec<_> = recipe.alternatives().iter().map(|recipe| recipe.entity.as_deref()).collect();
    assert_eq!(entities, [Some("page"), Some("draft")]);
    assert!(recipe.variants.iter().all(|variant| variant.recipe.reads.len() == 1));
}

#[test]
fn operations_inherit_and_need_not_show_anything() {
    let (recipes, faults) = parsed(
        "{a: {operation: arguments.call.name, entity: charge, operations: {Get: {}, \
         Post: {operation: create, reads: [{tool: look}]}, Put: {variants: [{when: 'true', reads: [{tool: look}]}]}}}}",
    );
    assert_eq!(faults, Vec::<String>::new());
    let dispatcher = recipes.get("a").unwrap().dispatcher.as_ref().unwrap();
    assert_eq!(dispatcher.argument.source(), "arguments.call.name");
    let post = &dispatcher.operations["Post"];
    assert_eq!(
        (post.entity.as_deref(), &post.operation),
        (Some("charge"), &Some(TextTemplate::Literal("create".into())))
    );
    let get = &dispatcher.operations["Get"];
    assert!(get.has_no_method() && get.operation.is_none(), "{get:?}");
    let fewer = parsed("{a: {operation: arguments.call.name, operations: {Get: {}}}}").0;
    let none = parsed("none").0;
    assert!(
        !fewer.permits_more_than(&fewer) && none.permits_more_than(&fewer),
        "its operations would no longer be unknown"
    );
}
