//! Two kinds of SVG plot, light and dark, each value with its spread: a line by category, and a range on a logarithmic axis.

use std::fmt::Write;

/// Drawing area and margins in pixels.
const WIDTH: f64 = 760.0;
const LEFT: f64 = 190.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 52.0;
const ROW: f64 = 34.0;
const PLOT: f64 = 300.0;
/// Told apart by most colour-blind readers (Okabe and Ito's set), on white and on black.
const COLOURS: [&str; 7] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f"];

/// One value with its spread.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Spread {
    pub lowest: f64,
    pub middle: f64,
    pub highest: f64,
}

/// A line: a value for each category, or none.
pub struct Line {
    pub name: String,
    pub values: Vec<Option<Spread>>,
}

/// Lines over categories. The axis is linear up to 1 and logarithmic above, so that none lost is at the bottom.
pub fn lines(title: &str, axis: &str, categories: &[String], all: &[Line]) -> String {
    let height = TOP + PLOT + 70.0 + 20.0 * all.len().div_ceil(3) as f64;
    let mut svg = head(title, height);
    let most = all.iter().flat_map(|line| &line.values).flatten().map(|value| value.highest).fold(1.0, f64::max);
    let decades = raised(most).ceil().max(1.0);
    let y = |value: f64| TOP + PLOT * (1.0 - raised(value) / decades);
    let x = |at: usize| LEFT + (WIDTH - LEFT - RIGHT) * (at as f64 + 0.5) / categories.len().max(1) as f64;
    for decade in 0..=decades as i32 {
        let value = if decade == 0 { 0.0 } else { 10_f64.powi(decade - 1) };
        tick(&mut svg, y(value), &short(value));
    }
    let _ = writeln!(svg, "<text x=\"12\" y=\"{:.1}\">{}</text>", TOP - 8.0, escaped(axis));
    for (at, name) in categories.iter().enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"m\">{}</text>",
            x(at),
            TOP + PLOT + 20.0,
            escaped(name)
        );
    }
    for (number, line) in all.iter().enumerate() {
        // Lines that lie on one another are moved aside by a little.
        let aside = (number as f64 - all.len() as f64 / 2.0) * 7.0;
        draw_line(&mut svg, line, COLOURS[number % COLOURS.len()], |at| x(at) + aside, y);
        let (column, row) = (number % 3, number / 3);
        let (left, top) = (LEFT + 185.0 * column as f64, TOP + PLOT + 46.0 + 20.0 * row as f64);
        legend(&mut svg, left, top, COLOURS[number % COLOURS.len()], &line.name);
    }
    svg + "</svg>\n"
}

/// 0 at 0, 1 at 1, and 1 more for each factor of ten.
fn raised(value: f64) -> f64 {
    if value <= 1.0 { value.max(0.0) } else { 1.0 + value.log10() }
}

fn draw_line(svg: &mut String, line: &Line, colour: &str, x: impl Fn(usize) -> f64, y: impl Fn(f64) -> f64) {
    let mut path = String::new();
    for (at, value) in line.values.iter().enumerate() {
        let Some(value) = value else { continue };
        let (x, middle) = (x(at), y(value.middle));
        let _ = write!(path, "{}{x:.1},{middle:.1} ", if path.is_empty() { "M" } else { "L" });
        let _ = writeln!(
            svg,
            "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{:.1}\" y2=\"{:.1}\" stroke=\"{colour}\"/><circle cx=\"{x:.1}\" cy=\"{middle:.1}\" r=\"3.5\" fill=\"{colour}\"/>",
            y(value.lowest),
            y(value.highest)
        );
    }
    let _ = writeln!(svg, "<path d=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>", path.trim());
}

fn legend(svg: &mut String, left: f64, top: f64, colour: &str, name: &str) {
    let _ = writeln!(
        svg,
        "<rect x=\"{left:.1}\" y=\"{:.1}\" width=\"12\" height=\"12\" fill=\"{colour}\"/><text x=\"{:.1}\" y=\"{top:.1}\">{}</text>",
        top - 10.0,
        left + 18.0,
        escaped(name)
    );
}

/// A row of a range plot.
pub struct Range {
    pub name: String,
    pub lowest: f64,
    pub low: f64,
    pub middle: f64,
    pub high: f64,
    pub highest: f64,
}

/// Rows on a logarithmic axis: a thin line from the lowest to the highest, a bar over the middle half, a mark at the median.
pub fn ranges(title: &str, unit: &str, rows: &[Range]) -> String {
    let height = TOP + ROW * rows.len() as f64 + 40.0;
    let mut svg = head(title, height);
    let positive = |value: f64| value.max(f64::MIN_POSITIVE);
    let least = rows.iter().map(|row| positive(row.lowest)).fold(f64::INFINITY, f64::min);
    let most = rows.iter().map(|row| positive(row.highest)).fold(0.0, f64::max);
    let (from, to) = (least.log10().floor(), most.log10().ceil().max(least.log10().floor() + 1.0));
    let x = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * (positive(value).log10() - from) / (to - from);
    let bottom = TOP + ROW * rows.len() as f64;
    for decade in from as i32..=to as i32 {
        let at = x(10_f64.powi(decade));
        let label = short(10_f64.powi(decade));
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{TOP}\" y2=\"{bottom:.1}\" class=\"g\"/><text x=\"{at:.1}\" y=\"{:.1}\" class=\"m\">{label}</text>",
            bottom + 18.0
        );
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.1}\" y=\"{:.1}\" class=\"m\">{}</text>",
        (LEFT + WIDTH) / 2.0,
        bottom + 35.0,
        escaped(unit)
    );
    for (number, row) in rows.iter().enumerate() {
        let y = TOP + ROW * (number as f64 + 0.5);
        let colour = COLOURS[number % COLOURS.len()];
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"e\">{}</text><line x1=\"{:.1}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" stroke=\"{colour}\"/>\
             <rect x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\" fill=\"{colour}\" fill-opacity=\"0.45\"/>\
             <rect x=\"{:.1}\" y=\"{:.1}\" width=\"3\" height=\"18\" fill=\"{colour}\"/>",
            LEFT - 10.0,
            y + 4.0,
            escaped(&row.name),
            x(row.lowest),
            x(row.highest),
            x(row.low),
            y - 6.0,
            (x(row.high) - x(row.low)).max(1.0),
            x(row.middle) - 1.5,
            y - 9.0
        );
    }
    svg + "</svg>\n"
}

fn head(title: &str, height: f64) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" role=\"img\">\n\
         <title>{title}</title>\n\
         <style>text{{font:13px sans-serif;fill:#222}}.t{{font-weight:bold;font-size:15px}}.m{{text-anchor:middle}}.e{{text-anchor:end}}\
         .g{{stroke:#888;stroke-opacity:.35}}.b{{fill:#fff}}@media(prefers-color-scheme:dark){{text{{fill:#ddd}}.b{{fill:#111}}}}</style>\n\
         <rect class=\"b\" width=\"100%\" height=\"100%\"/>\n<text x=\"12\" y=\"22\" class=\"t\">{title}</text>\n",
        title = escaped(title)
    )
}

fn tick(svg: &mut String, y: f64, label: &str) {
    let _ = writeln!(
        svg,
        "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\" class=\"g\"/><text x=\"{:.1}\" y=\"{:.1}\" class=\"e\">{label}</text>",
        WIDTH - RIGHT,
        LEFT - 10.0,
        y + 4.0
    );
}

/// 100k rather than 100000.
fn short(value: f64) -> String {
    match value {
        large if large >= 1e6 => format!("{}M", large / 1e6),
        large if large >= 1e3 => format!("{}k", large / 1e3),
        small => format!("{small}"),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spread(lowest: f64, middle: f64, highest: f64) -> Option<Spread> {
        Some(Spread { lowest, middle, highest })
    }

    #[test]
    fn the_axis_shows_none_and_many() {
        assert_eq!([0.0, 1.0, 10.0, 1e6].map(raised), [0.0, 1.0, 2.0, 7.0]);
        assert_eq!([0.0, 100.0, 1_000.0, 1e6].map(short), ["0", "100", "1k", "1M"]);
    }

    #[test]
    fn every_value_is_drawn_and_names_are_safe() {
        let values = vec![spread(0.0, 0.0, 5.0), None, spread(10.0, 100.0, 1_000.0)];
        let all = [
            Line { name: "a <b>".into(), values },
            Line { name: "c".into(), values: vec![None, spread(1.0, 1.0, 1.0), None] },
        ];
        let svg = lines("lost & found", "ppm", &["1k".into(), "2k".into(), "3k".into()], &all);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert!(svg.contains("lost &amp; found") && svg.contains("a &lt;b&gt;") && !svg.contains("NaN"), "{svg}");
        assert!(svg.starts_with("<svg") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn a_range_lies_in_order_on_its_axis() {
        let row = |name: &str, scale: f64| Range {
            name: name.into(),
            lowest: scale,
            low: 2.0 * scale,
            middle: 3.0 * scale,
            high: 4.0 * scale,
            highest: 9.0 * scale,
        };
        let svg = ranges("one way", "ns", &[row("a", 10.0), row("b", 1_000.0)]);
        let places: Vec<f64> = svg
            .lines()
            .filter(|line| line.contains("fill-opacity"))
            .filter_map(|line| line.split("<rect x=\"").nth(1)?.split('"').next()?.parse().ok())
            .collect();
        assert!(places.len() == 2 && places[0] < places[1], "{places:?}");
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    }
}
