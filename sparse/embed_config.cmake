# Writes OUTPUT, a source that includes HEADER and defines NAME, declared there, as the text of INPUT.
file(READ ${INPUT} text)
file(CONFIGURE OUTPUT ${OUTPUT} CONTENT [[#include "@HEADER@"

const char* const @NAME@ = R"config(@text@)config";
]] @ONLY)
