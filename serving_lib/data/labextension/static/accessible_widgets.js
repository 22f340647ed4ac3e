// Three things that a lecture lacks in JupyterLab. The sliders, players and pictures have no name that a screen
// reader could say: the names are taken from what stands beside them. And the notebook's shortcuts take the keys of a
// focused control (the arrow keys of a list move to another cell): keys without a modifier are given back to it. And
// printed lines break in the middle of a word: they shall do that only where a word is longer than a line.

const STYLE = `
.jp-OutputArea-output.jp-OutputArea-output pre { word-break: normal; overflow-wrap: anywhere; }
.jp-RenderedMarkdown :is(a, code) { overflow-wrap: anywhere; }`;

const PLAYER_BUTTONS = { 'fa-play': 'Play', 'fa-pause': 'Pause', 'fa-stop': 'Stop', 'fa-retweet': 'Repeat' };

function set(element, attribute, text) {
  if (text && element.getAttribute(attribute) !== text) {
    element.setAttribute(attribute, text);
  }
}

function nameEverything() {
  for (const slider of document.querySelectorAll('.widget-slider')) {
    const label = slider.querySelector('.widget-label')?.textContent;
    for (const handle of slider.querySelectorAll('.noUi-handle')) {
      set(handle, 'aria-label', label);
    }
    // The number beside a slider can be edited.
    for (const readout of slider.querySelectorAll('.widget-readout[contenteditable="true"]')) {
      set(readout, 'role', 'textbox');
      set(readout, 'aria-label', label && `${label}, as a number`);
    }
  }
  for (const button of document.querySelectorAll('.widget-play button')) {
    const icon = Object.keys(PLAYER_BUTTONS).find(name => button.querySelector(`.${name}`));
    set(button, 'aria-label', PLAYER_BUTTONS[icon]);
  }
  for (const picture of document.querySelectorAll('img.serving-picture')) {
    // The sentence that describes a picture is the next one in the same cell.
    const cell = picture.closest('.jp-OutputArea') ?? document.body;
    const sentence = [...cell.querySelectorAll('.serving-sentence')].find(
      candidate => picture.compareDocumentPosition(candidate) & Node.DOCUMENT_POSITION_FOLLOWING
    );
    set(picture, 'alt', sentence?.textContent.trim() || 'Picture');
  }
  // A live region must be there before its text changes, so it is the widget's own element.
  for (const sentence of document.querySelectorAll('.serving-sentence')) {
    set(sentence, 'aria-live', 'polite');
  }
}

const CONTROLS = '.jupyter-widgets :is(select, input, button, .noUi-handle), button.jupyter-widgets';

function giveKeysBack(event) {
  const control = event.target instanceof Element && event.target.closest(CONTROLS);
  if (control) {
    const modified = event.shiftKey || event.ctrlKey || event.altKey || event.metaKey;
    control.toggleAttribute('data-lm-suppress-shortcuts', !modified && event.key !== 'Escape');
  }
}

function activate() {
  document.head.appendChild(document.createElement('style')).textContent = STYLE;
  window.addEventListener('keydown', giveKeysBack, true); // before the document, where the shortcuts are
  let scheduled = false;
  const observer = new MutationObserver(() => {
    if (!scheduled) {
      scheduled = true;
      requestAnimationFrame(() => {
        scheduled = false;
        nameEverything();
      });
    }
  });
  observer.observe(document.body, { childList: true, subtree: true, characterData: true });
}

const plugin = { id: 'serving-workbook:accessible-widgets', autoStart: true, activate };

// What a bundler would write around it: the container that JupyterLab asks for the module './extension'.
window._JUPYTERLAB = window._JUPYTERLAB || {};
window._JUPYTERLAB['serving-workbook'] = {
  init: () => {},
  get: async () => () => ({ __esModule: true, default: plugin })
};
