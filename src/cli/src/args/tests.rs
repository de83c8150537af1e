use clap::CommandFactory;

use super::*;

#[test]
fn command_definitions_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn flags_without_a_command_belong_to_serve() {
    let cli = Cli::try_parse_from(["countersign", "--listen", "127.0.0.1:1", "--data", "/d"]).unwrap();
    assert!(cli.command.is_none());
    assert_eq!(cli.serve.listen.as_deref(), Some("127.0.0.1:1"));
    assert!(Cli::try_parse_from(["countersign", "--listen", "x", "serve"]).is_err());
    assert!(Cli::try_parse_from(["countersign", "keys", "create", "--role", "king", "--name", "a"]).is_err());
    let cli = Cli::try_parse_from(["countersign", "keys", "create", "--role", "agent", "--name", "a", "--data", "/d"]);
    let Some(Command::Keys(keys)) = cli.unwrap().command else { panic!("not keys") };
    assert_eq!(keys.data.data, Some("/d".into()));
}

#[test]
fn only_near_subcommands_are_suggested() {
    for (given, suggestion) in [("bogus", None), ("sevrers", Some("'servers'"))] {
        let mut error = Cli::try_parse_from(["countersign", given]).unwrap_err();
        crate::keep_near_suggestions(&mut error);
        let text = error.to_string();
        assert!(text.contains(&format!("unrecognized subcommand '{given}'")), "{text}");
        assert_eq!(text.contains("similar"), suggestion.is_some(), "{text}");
        assert!(suggestion.is_none_or(|near| text.contains(near)), "{text}");
    }
}

#[test]
fn absence_is_set_at_the_gateway_of_a_data_directory() {
    let parse = |args: &[&str]| {
        let all = ["countersign", "people"].iter().chain(args);
        Cli::try_parse_from(all).map(|cli| match cli.command {
            Some(Command::People(people)) => people.command,
            other => panic!("{other:?}"),
        })
    };
    let set = parse(&["away", "--until", "2026-12-14T12:00:00Z", "--deputy", "bob", "--data", "/d", "--json"]).unwrap();
    let storage::PeopleCommand::Away(away) = set else { panic!("not away") };
    assert_eq!((away.until.to_string().as_str(), away.deputy.as_str()), ("2026-12-14T12:00:00Z", "bob"));
    assert_eq!((away.connect.data.data, away.connect.json), (Some("/d".into()), true));
    assert!(
        parse(&["away", "--deputy", "bob"]).is_err() && parse(&["away", "--until", "soon", "--deputy", "b"]).is_err()
    );
    assert!(matches!(parse(&["back"]), Ok(storage::PeopleCommand::Back(_))));
}

#[test]
fn time_of_standing_rule_has_the_limit_of_its_verdict() {
    let parse = |args: &[&str]| {
        Cli::try_parse_from(["countersign", "changes", "rule", "chg_1"].iter().chain(args)).map_err(|e| e.to_string())
    };
    for accepted in [&["--allow-for", "30 days"] as &[&str], &["--deny"], &["--deny", "--deny-for", "366 days"]] {
        assert!(parse(accepted).is_ok(), "{accepted:?}");
    }
    for (refused, limit) in [
        (&["--allow-for", "400d"] as &[&str], "30 days"),
        (&["--allow-for", "500ms"], "from 1s"),
        (&["--deny", "--deny-for", "367 days"], "366 days"),
    ] {
        let error = parse(refused).unwrap_err();
        assert!(error.contains(limit), "{error}");
    }
}
