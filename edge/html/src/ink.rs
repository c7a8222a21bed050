//! Colours for light and dark backgrounds. They are those of Okabe and Ito ("Color Universal
//! Design", 2008).
//!
//! A drawn element refers to an ink. The element has the ink's colour for light backgrounds as an
//! attribute, for programs that ignore style sheets, such as vector editors. The style sheet of the
//! page or picture overrides the attribute, and also has the colour for dark backgrounds.

/// Colour of an element, by its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ink {
    /// Colour of text, and of published values.
    Text,
    /// Colour of less important text.
    Muted,
    /// Colour of the grid lines behind a plot.
    Grid,
    /// Colour of the background.
    Paper,
    /// Colour of the series with this number. There are seven colours, which repeat from the eighth
    /// series on.
    Series(usize),
}

/// Colours of series on a light background. Colours of consecutive series differ well from each
/// other and from the background.
const LIGHT: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#6b6b6b"];

/// Colours of series on a dark background.
const DARK: [&str; 7] =
    ["#56b4e9", "#e69f00", "#2fbf93", "#cc79a7", "#f0e442", "#e0783a", "#b0b0b0"];

/// Colours of text, less important text, grid and background, on a light background.
const LIGHT_PLAIN: [&str; 4] = ["#1b1f24", "#5b6470", "#dfe3e8", "#ffffff"];
const DARK_PLAIN: [&str; 4] = ["#e8eaed", "#9aa4b0", "#343a42", "#15181c"];
const PLAIN: [&str; 4] = ["text", "muted", "grid", "paper"];

impl Ink {
    /// Returns the name of the ink in CSS class names and variables.
    pub(crate) fn name(self) -> String {
        match self {
            Ink::Text => PLAIN[0].into(),
            Ink::Muted => PLAIN[1].into(),
            Ink::Grid => PLAIN[2].into(),
            Ink::Paper => PLAIN[3].into(),
            Ink::Series(number) => format!("s{}", number % LIGHT.len()),
        }
    }

    /// Returns the colour on a light background.
    pub(crate) fn light(self) -> &'static str {
        match self {
            Ink::Text => LIGHT_PLAIN[0],
            Ink::Muted => LIGHT_PLAIN[1],
            Ink::Grid => LIGHT_PLAIN[2],
            Ink::Paper => LIGHT_PLAIN[3],
            Ink::Series(number) => LIGHT[number % LIGHT.len()],
        }
    }
}

fn all() -> impl Iterator<Item = Ink> {
    let series = (0..LIGHT.len()).map(Ink::Series);
    [Ink::Text, Ink::Muted, Ink::Grid, Ink::Paper].into_iter().chain(series)
}

/// Returns the CSS rules for inks: variables for light and dark backgrounds, and classes for fill
/// and stroke.
pub(crate) fn style() -> String {
    let variables = |plain: [&str; 4], series: [&str; 7]| {
        let colours = plain.into_iter().chain(series);
        all().zip(colours).map(|(ink, colour)| format!("--{}:{colour};", ink.name())).collect()
    };
    let (light, dark): (String, String) =
        (variables(LIGHT_PLAIN, LIGHT), variables(DARK_PLAIN, DARK));
    let mut text = format!(
        ":root{{color-scheme:light dark;{light}}}\n\
         @media(prefers-color-scheme:dark){{:root{{{dark}}}}}\n\
         @media print{{:root{{{light}}}}}\n"
    );
    for ink in all() {
        let name = ink.name();
        text += &format!(".f-{name}{{fill:var(--{name})}}.k-{name}{{stroke:var(--{name})}}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the relative luminance of a colour, as the Web Content Accessibility Guidelines
    /// define it.
    fn luminance(colour: &str) -> f64 {
        let part = |at: usize| {
            let value = u8::from_str_radix(&colour[at..at + 2], 16).unwrap();
            let value = f64::from(value) / 255.0;
            if value <= 0.03928 { value / 12.92 } else { ((value + 0.055) / 1.055).powf(2.4) }
        };
        0.2126 * part(1) + 0.7152 * part(3) + 0.0722 * part(5)
    }

    fn contrast(a: &str, b: &str) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn colours_of_charts_have_enough_contrast_with_their_background() {
        // Fewer than seven colours of Okabe and Ito have a contrast of 3 : 1 on white. Orange and
        // sky blue have 2.1, so they are used last. Marks are large and also differ in shape.
        for (paper, plain, series) in
            [(LIGHT_PLAIN[3], LIGHT_PLAIN, LIGHT), (DARK_PLAIN[3], DARK_PLAIN, DARK)]
        {
            for colour in &series[..3] {
                assert!(contrast(colour, paper) >= 3.0, "{colour} on {paper}");
            }
            assert!(series.iter().all(|colour| contrast(colour, paper) >= 2.0));
            assert!(contrast(plain[0], paper) >= 7.0);
            assert!(contrast(plain[1], paper) >= 4.5);
        }
    }
}
