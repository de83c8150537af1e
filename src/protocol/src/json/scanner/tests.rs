use super::*;

#[test]
fn special_bytes_are_found_at_any_offset() {
    let assert_found = |bytes: &[u8]| {
        let is_end = |b: &u8| matches!(b, b'"' | b'\\');
        assert_eq!(find_special::<false>(bytes), bytes.iter().position(is_end), "{bytes:?}");
        assert_eq!(find_special::<true>(bytes), bytes.iter().position(|b| is_end(b) || *b < 0x20), "{bytes:?}");
    };
    for length in 0..120 {
        for end in ['"', '\\', '\u{0}', '\u{1f}', '\n'] {
            let text = format!("{}{end}\"\\{}", "#!]é\u{7f} \u{20}".repeat(length), "y".repeat(length % 9));
            for cut in 0..text.len().min(41) {
                assert_found(&text.as_bytes()[cut..]);
            }
        }
    }
    assert_found(b"");
    assert_found("é".repeat(50).as_bytes());
}

#[test]
fn tokens_cover_the_whole_text() {
    use Token::{Close, Comma, Key, Open, Scalar, String};
    let text = " {\"a\\\"\" : [ -1.5e3,true , \"x:\"],\"b\":{}}\n";
    let expected = [
        Open('{'),
        Key(r#""a\"""#),
        Open('['),
        Scalar("-1.5e3"),
        Comma,
        Scalar("true"),
        Comma,
        String(r#""x:""#),
        Close(']'),
        Comma,
        Key(r#""b""#),
        Open('{'),
        Close('}'),
        Close('}'),
    ];
    assert!(tokens(text).eq(expected));
}

#[test]
fn depth_is_counted_outside_strings_only() {
    for (text, depth) in [
        ("{}", 1),
        ("[[]]", 2),
        (r#"{"a":[{"b":"[[[[{{{{"}]}"#, 3),
        (r#"["\"[[[[\\",[1]]"#, 2),
        (r#"[[],[],[],[],[],[]]"#, 2),
        (r#""[[[[""#, 0),
    ] {
        assert!(!is_deeper_than(text, depth), "{text} is at most {depth} deep");
        if depth > 0 {
            assert!(is_deeper_than(text, depth - 1), "{text} is {depth} deep");
        }
    }
}

#[test]
fn depth_of_invalid_text_is_computed() {
    for text in ["", "\"", "\"\\", "]]]]", "[\"", "{\"a\\"] {
        let _ = is_deeper_than(text, 0);
    }
    assert!(is_deeper_than(&"[".repeat(1 << 20), 128));
}

#[test]
fn surrogates_must_come_in_pairs() {
    for lone in [
        r#""\ud800""#,
        r#""\udbff x""#,
        r#""\udc00""#,
        r#""\ud800\ud800""#,
        r#""\uD83D\\ude00""#,
        r#""\ud83d\n""#,
        r#""\\\ud800""#,
        r#""\ud83d\ude00\ude00""#,
    ] {
        assert!(has_lone_surrogate(lone), "{lone}");
    }
    for valid in
        [r#""\ud83d\ude00""#, r#""\uD83D\uDE00\uD83D\uDE00""#, r#""\\ud800""#, r#""\u0041\n""#, r#""😀""#, "", "\\"]
    {
        assert!(!has_lone_surrogate(valid), "{valid}");
    }
}
