// assets.cpp — the files of the page. The assembler includes them, so no tool has to convert them.
#include "src/page/server.h"

// Global symbols, because arm64 may merge the address of a local symbol with others.
#define EMBED(name, file)                                                       \
    asm(".globl " #name "_begin, " #name "_end\n.pushsection .rodata\n" #name   \
        "_begin: .incbin \"" file "\"\n" #name "_end: .byte 0\n.popsection\n"); \
    extern "C" const char name##_begin[], name##_end[]
EMBED(page_html, "src/page/page.html");
EMBED(page_css, "src/page/page.css");
EMBED(page_js, "src/page/page.js");
EMBED(charts_js, "build/charts.js.gz");

namespace convoy {

#define BYTES(name) std::string_view(name##_begin, size_t(name##_end - name##_begin))
const Asset kAssets[] = {
    {"/", "text/html; charset=utf-8", BYTES(page_html)},
    {"/page.css", "text/css; charset=utf-8", BYTES(page_css)},
    {"/page.js", "text/javascript; charset=utf-8", BYTES(page_js)},
    {"/charts.js", "text/javascript; charset=utf-8", BYTES(charts_js), true},
};

}  // namespace convoy
