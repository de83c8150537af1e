use super::*;
use countersign_config::{UpstreamConfig, UpstreamTarget};

fn names(prefix: &str) -> Names {
    let target = UpstreamTarget::Command {
        command: "true".into(),
        args: vec![],
        env: std::collections::BTreeMap::new(),
        cwd: None,
    };
    Names::new(&UpstreamConfig { prefix: prefix.to_owned(), ..UpstreamConfig::new("fs", target) })
}

fn raw(text: &str) -> Arc<RawValue> {
    RawValue::from_string(text.to_owned()).unwrap().into()
}

#[test]
fn tool_keeps_text_except_name() {
    let text = r#"{ "x":12345678901234567890123, "name":"read", "inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true} }"#;
    let tool = names("fs__").parse_tool(&raw(text)).unwrap();
    assert_eq!(tool.name, "fs__read");
    assert_eq!(tool.raw.unwrap().get(), text.replace(r#""read""#, r#""fs__read""#));
    assert!(tool.annotations.read_only_hint && tool.annotations.destructive_hint && tool.annotations.open_world_hint);
    let same = raw(text);
    assert!(Arc::ptr_eq(&names("").parse_tool(&same).unwrap().raw.unwrap(), &same), "nothing is copied without need");
}

#[test]
fn absent_hints_have_schema_defaults() {
    let tool = names("").parse_tool(&raw(r#"{"name":"t","inputSchema":{"type":"object"}}"#)).unwrap();
    let expected = ToolAnnotations {
        read_only_hint: false,
        destructive_hint: true,
        idempotent_hint: false,
        open_world_hint: true,
    };
    assert_eq!(tool.annotations, expected);
}

#[test]
fn input_schema_without_type_gets_object_type() {
    let tool = names("").parse_tool(&raw(r#"{"name":"t","inputSchema":{}}"#)).unwrap();
    assert_eq!(tool.raw.unwrap().get(), r#"{"name":"t","inputSchema":{"type":"object"}}"#);
}

#[test]
fn invalid_definitions_are_rejected_with_reason() {
    for (text, name) in [
        (r#"{"name":"t"}"#, "t"),
        (r#"{"name":"t","inputSchema":true}"#, "t"),
        (r#"{"name":"t","inputSchema":{"type":"array"}}"#, "t"),
        (r#"{"name":"t","inputSchema":{"type":"object"},"outputSchema":true}"#, "t"),
        (r#"{"name":"t","inputSchema":{"type":"object"},"description":5}"#, "t"),
        (r#"{"name":"t","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":"yes"}}"#, "t"),
        (r#"{"name":"t","name":"u","inputSchema":{"type":"object"}}"#, "u"),
        (r#"{"inputSchema":{"type":"object"}}"#, ""),
        (r#"{"name":5,"inputSchema":{"type":"object"}}"#, ""),
        ("5", ""),
    ] {
        let error = names("p__").parse_tool(&raw(text)).unwrap_err();
        assert_eq!((error.kind, error.name.as_str()), ("the tool", name), "{text}");
    }
    assert!(names("").parse_prompt(&raw(r#"{"name":"p","arguments":[{"name":1}]}"#)).is_err());
    assert!(names("").parse_resource(&raw(r#"{"uri":"a:b"}"#)).is_err());
    assert!(names("").parse_template(&raw(r#"{"uri":"a:b","name":"n"}"#)).is_err());
}

#[test]
fn resource_uris_get_server_scheme() {
    let names = names("fs__");
    let resource = names.parse_resource(&raw(r#"{"uri":"file:///a","name":"a","size":1e3}"#)).unwrap();
    assert_eq!(resource.uri, "fs+file:///a");
    assert_eq!(resource.raw.unwrap().get(), r#"{"uri":"fs+file:///a","name":"a","size":1e3}"#);
    let template = names.parse_template(&raw(r#"{"uriTemplate":"file:///{p}","name":"a"}"#)).unwrap();
    assert_eq!(template.raw.unwrap().get(), r#"{"uriTemplate":"fs+file:///{p}","name":"a"}"#);
    let prompt = names.parse_prompt(&raw(r#"{"name":"p","description":null}"#)).unwrap();
    assert_eq!(prompt.raw.unwrap().get(), r#"{"name":"fs__p","description":null}"#);
}
