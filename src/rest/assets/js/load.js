// Loads the texts of the page's language before the page, because modules read texts while they load.

import { loadLanguage } from './core/locale.js';

loadLanguage().then(() => import('./main.js'));
