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
