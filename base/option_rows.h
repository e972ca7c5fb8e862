/* option_rows.h - a macro for each type of row of an option table; for the file of the table only.
 *
 * Before the rows, define OPTIONS_OF as the program's struct of options. A `group` of NULL
 * continues the group of the row before.
 *
 * Owns    nothing.
 * Thread  any.
 * Errors  none.
 * Units   as option_table.h. */
#ifndef TARN_BASE_OPTION_ROWS_H
#define TARN_BASE_OPTION_ROWS_H

#include "base/option_table.h"

#define OPTION_AT(field) offsetof(OPTIONS_OF, field)
// clang-format off
#define OPTION_ROW(type_, group_, name_, field_, preset_, help_) \
    .group = group_, .name = name_, .type = type_, .offset = OPTION_AT(field_), \
    .preset = preset_, .help = help_
#define TEXT(group, name, field, preset, value_, help) \
    {OPTION_ROW(OPTION_TEXT, group, name, field, preset, help), .value = value_}
#define CONFIG_FILE(group, name, field, help) \
    {OPTION_ROW(OPTION_FILE, group, name, field, "", help), .value = "FILE"}
#define SECRET(group, name, field, value_, help) \
    {OPTION_ROW(OPTION_TEXT, group, name, field, "", help), .value = value_, .secret = true}
#define CHOICE(group, name, field, preset, choices_, help) \
    {OPTION_ROW(OPTION_CHOICE, group, name, field, preset, help), .choices = choices_}
#define CHOICE_OF(group, name, field, preset, words_, help) \
    {OPTION_ROW(OPTION_CHOICE, group, name, field, preset, help), .words = words_}
#define COUNT(group, name, field, min_, max_, preset, help) \
    {OPTION_ROW(OPTION_COUNT, group, name, field, preset, help), \
     .min = min_, .max = max_, .value = "N"}
#define SIZE(group, name, field, min_, max_, preset, help) \
    {OPTION_ROW(OPTION_SIZE, group, name, field, preset, help), \
     .min = min_, .max = max_, .value = "SIZE"}
#define NUMBER(group, name, field, low_, high_, preset, value_, help) \
    {OPTION_ROW(OPTION_NUMBER, group, name, field, preset, help), \
     .low = low_, .high = high_, .value = value_}
#define SHARE(group, name, field, preset, help) \
    {OPTION_ROW(OPTION_SHARE, group, name, field, preset, help), .value = "SHARE"}
#define BOOL(group, name, field, preset, help) \
    {OPTION_ROW(OPTION_BOOL, group, name, field, preset, help)}
#define SWITCH(group, name, field, help) \
    {OPTION_ROW(OPTION_SWITCH, group, name, field, "", help)}
#define LIST(group, name, field, value_, help) \
    {OPTION_ROW(OPTION_LIST, group, name, field, "", help), .value = value_}
// clang-format on

#endif
