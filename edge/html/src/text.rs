//! Text for HTML and SVG, its approximate width, and formatting of numbers.

/// Escapes a text for HTML and SVG.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Other control characters are not allowed in HTML.
            control if control.is_control() && control != '\n' => out.push(' '),
            other => out.push(other),
        }
    }
    out
}

/// Converts prose to HTML. Text between backquotes becomes code.
pub(crate) fn prose(text: &str) -> String {
    let quotes = text.matches('`').count();
    let mut out = String::new();
    for (nth, part) in text.split('`').enumerate() {
        let part = escaped(part);
        match nth % 2 {
            0 => out.push_str(&part),
            // The last backquote is kept as it is if it has no partner.
            _ if nth == quotes => out.push_str(&format!("`{part}")),
            _ => out.push_str(&format!("<code>{part}</code>")),
        }
    }
    out
}

/// Returns the approximate width of a text in sans serif letters, in units of the font size.
pub(crate) fn ems(text: &str) -> f64 {
    text.chars().map(em).sum()
}

fn em(character: char) -> f64 {
    match character {
        'i' | 'j' | 'l' | 'I' | '.' | ',' | ':' | ';' | '\'' | '|' | '!' => 0.29,
        ' ' | 'f' | 't' | 'r' | '(' | ')' | '-' | '/' => 0.36,
        'm' | 'w' | 'M' | 'W' | '%' => 0.88,
        'A'..='Z' => 0.68,
        _ => 0.6,
    }
}

/// Formats a number with `decimals` decimals and a typographic minus sign. Numbers of at least
/// 10,000 have thousands separators.
pub(crate) fn number(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, part) = text.split_once('.').unwrap_or((&text, ""));
    let mut out = String::new();
    // A number that is rounded to zero gets no minus sign.
    if value < 0.0 && text.chars().any(|digit| ('1'..='9').contains(&digit)) {
        out.push('\u{2212}');
    }
    for (nth, digit) in whole.chars().enumerate() {
        let left = whole.len() - nth;
        if nth > 0 && whole.len() > 4 && left.is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    if !part.is_empty() {
        out.push('.');
        out.push_str(part);
    }
    out
}

/// Formats a number with three significant digits.
pub(crate) fn brief(value: f64) -> String {
    if value == 0.0 {
        return "0".into();
    }
    let places = 2.0 - value.abs().log10().floor();
    let decimals = (0..=9).rev().find(|&decimals| f64::from(decimals) <= places).unwrap_or(0);
    let text = number(value, usize::try_from(decimals).unwrap_or(0));
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_text_is_escaped_in_html() {
        assert_eq!(escaped("<b a=\"x\">&'\u{7}"), "&lt;b a=&quot;x&quot;&gt;&amp;&#39; ");
        assert_eq!(prose("run `a < b`, then"), "run <code>a &lt; b</code>, then");
        assert_eq!(prose("a ` b"), "a ` b");
        assert_eq!(prose("`a` and ` b"), "<code>a</code> and ` b");
    }

    #[test]
    fn numbers_in_charts_have_minus_signs_and_thousands_separators() {
        assert_eq!(number(-1234.5, 1), "\u{2212}1234.5");
        assert_eq!(number(12345.0, 0), "12,345");
        assert_eq!(number(-0.001, 1), "0.0");
        assert_eq!(brief(0.0), "0");
        assert_eq!(brief(0.012_34), "0.0123");
        assert_eq!(brief(-9.9), "\u{2212}9.9");
        assert_eq!(brief(123_456.0), "123,456");
        assert_eq!(brief(2.0), "2");
    }
}
