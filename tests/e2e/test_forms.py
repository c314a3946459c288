"""What was stored under one form of weights serves no other (plans of reuse: test_reuse; packed files: test_packed)."""
import json
import unittest

from program import MODEL, PAGE, ProgramTest

QUESTION = {"prompt": "What is the TOTAL?", "images": [str(PAGE)]}
FORMS = {
    "dense": (),
    "int8": ("--weights", "int8"),
    "int4": ("--weights", "int4"),
    "int8, activations of 8 bits": ("--weights", "int8", "--activations", "int8"),
    "the encoder in int8": ("--vision-weights", "int8"),
}


class Forms(ProgramTest):
    def ask(self, form, *questions):
        """Tokens of each prompt that the folder had, and where its image came from."""
        text = "".join(json.dumps(question) + "\n" for question in questions)
        # always: a busy machine may measure that loading a prompt takes longer than computing it
        out = self.ok("run", "-m", MODEL, "--requests", "-", "--temperature", "0", "--max-tokens", "4", "--dtype", "bf16", "--reuse", "vlcache",
                      "--cache-disk", self.folder / "kv", "--cache-prefixes", "always", *FORMS[form], stdin=text)
        answers = [json.loads(line) for line in out.splitlines()]
        return [(answer["cache"]["prefix_sources"].get("disk", 0), answer["cache"]["images"][0]) for answer in answers]

    def test_stored_kv_is_of_one_form(self):
        for form in FORMS:  # each beside what those before it have stored
            with self.subTest(form):
                [(n_found, image)] = self.ask(form, QUESTION)
                self.assertEqual((n_found, image["source"], image["encoder"]), (0, "computed", "computed"))
        for form in FORMS:  # and each finds its own
            with self.subTest(form):
                (_, image), (n_found, _) = self.ask(form, {**QUESTION, "system": "Be brief."}, QUESTION)
                self.assertEqual((image["source"], image["encoder"]), ("disk", "hit"))
                self.assertGreater(n_found, 256)


if __name__ == "__main__":
    unittest.main()
